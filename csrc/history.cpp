// What hypotheses of streams consist of: see hf_ngpulm/decoding/sessions/history.py.
#include "core.hpp"

// Tails [S, K] of up to `room` tokens.
struct NgpulmTails {
  int64_t* sizes;
  int32_t* ids;
  int64_t *starts, *ends;
  double *before, *after;
  int64_t num_beams, room;
};

// What a search did with hypotheses in each of `length` steps, [N, length, K] or [length, N, K]: the place in the beam that each
// comes from, and its label. `live` [S, K] says whether there is a hypothesis in a place now.
struct NgpulmLinks {
  const int32_t *links, *labels;
  const uint8_t* live;
  int64_t length;
};

namespace ngpulm {

namespace {

constexpr int32_t INSIDE = -1, STILL = -1;  // as hf_ngpulm/search/ctc_beam/ and transducer_beam/__init__.py have them

struct Token {
  int32_t id;
  int64_t start, end;
  double before, after;
};

class Tail {
 public:
  Tail(const NgpulmTails& tails, int64_t row, int64_t k) : t_(tails), at_(row * tails.num_beams + k) {}

  int64_t& size() { return t_.sizes[at_]; }
  Token get(int64_t i) const {
    const int64_t at = at_ * t_.room + i;
    return {t_.ids[at], t_.starts[at], t_.ends[at], t_.before[at], t_.after[at]};
  }
  void put(int64_t i, const Token& token) {
    const int64_t at = at_ * t_.room + i;
    t_.ids[at] = token.id, t_.starts[at] = token.start, t_.ends[at] = token.end;
    t_.before[at] = token.before, t_.after[at] = token.after;
  }
  void append(const Token& token) { put(size()++, token); }
  void extend_last(int64_t end, double after) {
    const int64_t at = at_ * t_.room + size() - 1;
    t_.ends[at] = end, t_.after[at] = after;
  }

 private:
  const NgpulmTails& t_;
  int64_t at_;
};

// Follows the hypotheses of one row after the other back through the steps of a search.
class Following {
 public:
  Following(const NgpulmTails& tails, const NgpulmLinks& links) : tails_(tails), l_(links), origins_(tails.num_beams), places_(tails.num_beams) {}

  // Args: at: where the first step of the row is; stride: to the next; length: steps.
  void begin(int64_t row, int64_t at, int64_t stride, int64_t length) {
    const int64_t num_beams = tails_.num_beams;
    for (int64_t k = 0; k < num_beams; ++k) {
      places_[k].resize(length);
      int64_t place = k;
      for (int64_t step = length - 1; step >= 0; --step) {
        places_[k][step] = at + step * stride + place;
        place = l_.links[places_[k][step]];
      }
      origins_[k] = is_live(row, k) ? place : -1;
    }
    copy_tails(row);
    for (int64_t k = 0; k < num_beams; ++k)
      if (!is_live(row, k)) Tail(tails_, row, k).size() = 0;
  }

  bool is_live(int64_t row, int64_t k) const { return l_.live[row * tails_.num_beams + k]; }
  // Where a hypothesis was before the first step, and where what a step did with it stands.
  int64_t origin(int64_t k) const { return origins_[k]; }
  int64_t place(int64_t k, int64_t step) const { return places_[k][step]; }

 private:
  // Have each hypothesis begin as that at another place did. Tails may be long, where an early token stays open: they are copied
  // column by column, and aside only if what they were is written over.
  void copy_tails(int64_t row) {
    const int64_t first = row * tails_.num_beams;
    old_sizes_.assign(tails_.sizes + first, tails_.sizes + first + tails_.num_beams);
    bool moved = false;
    for (int64_t k = 0; k < tails_.num_beams; ++k) {
      if (!moves(k)) continue;
      tails_.sizes[first + k] = old_sizes_[origins_[k]];
      moved = true;
    }
    if (!moved) return;
    copy_column(tails_.ids + first * tails_.room), copy_column(tails_.starts + first * tails_.room);
    copy_column(tails_.ends + first * tails_.room), copy_column(tails_.before + first * tails_.room);
    copy_column(tails_.after + first * tails_.room);
  }

  bool moves(int64_t k) const { return origins_[k] >= 0 && origins_[k] != k; }

  template <class T>
  void copy_column(T* column) {
    aside_.clear();
    for (int64_t k = 0; k < tails_.num_beams; ++k)
      if (moves(k) && moves(origins_[k])) {
        const char* from = reinterpret_cast<const char*>(column + origins_[k] * tails_.room);
        aside_.insert(aside_.end(), from, from + old_sizes_[origins_[k]] * sizeof(T));
      }
    const char* next = aside_.data();
    for (int64_t k = 0; k < tails_.num_beams; ++k) {
      if (!moves(k)) continue;
      const size_t bytes = old_sizes_[origins_[k]] * sizeof(T);
      const bool aside = moves(origins_[k]);
      const char* from = aside ? next : reinterpret_cast<const char*>(column + origins_[k] * tails_.room);
      if (bytes) std::memcpy(column + k * tails_.room, from, bytes);
      if (aside) next += bytes;
    }
  }

  const NgpulmTails& tails_;
  const NgpulmLinks& l_;
  std::vector<int64_t> origins_;
  std::vector<std::vector<int64_t>> places_;
  std::vector<int64_t> old_sizes_;
  std::vector<char> aside_;
};

}  // namespace

}  // namespace ngpulm

using namespace ngpulm;

// Frames of greedy CTC search: `labels` and `confidences` [N, longest]; of all streams the number of the first new frame, the
// label before it and the sum of all confidences before, the latter two rewritten.
NGPULM_EXPORT int64_t ngpulm_history_label(int64_t count, const int64_t* rows, const int32_t* labels, const int32_t* lengths, int64_t longest,
                                           const int64_t* firsts, int64_t* last, double* sums, const float* confidences,
                                           int64_t blank, const NgpulmTails* tails) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i];
    Tail tail(*tails, row, 0);
    for (int64_t t = 0; t < lengths[i]; ++t) {
      const int64_t frame = firsts[row] + t;
      const int32_t label = labels[i * longest + t];
      const double before = sums[row];
      sums[row] += confidences[i * longest + t];
      if (label != blank && label == last[row]) tail.extend_last(frame + 1, sums[row]);
      else if (label != blank) tail.append({label, frame, frame + 1, before, sums[row]});
      last[row] = label;
    }
  }
  return -1;
}

// Frames of CTC beam search: links and labels [N, T, K], confidences [N, T], `firsts` and `sums` as above.
NGPULM_EXPORT int64_t ngpulm_history_frames(int64_t count, const int64_t* rows, const NgpulmLinks* links, const int32_t* lengths,
                                            const int64_t* firsts, double* sums, const float* confidences,
                                            const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Following following(*tails, *links);
    std::vector<double> totals(links->length + 1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[i];
      totals[0] = sums[row];
      for (int64_t t = 0; t < lengths[i]; ++t) totals[t + 1] = totals[t] + confidences[i * links->length + t];
      sums[row] = totals[lengths[i]];
      following.begin(row, i * links->length * tails->num_beams, tails->num_beams, lengths[i]);
      for (int64_t k = 0; k < tails->num_beams; ++k) {
        if (!following.is_live(row, k)) continue;
        Tail tail(*tails, row, k);
        for (int64_t t = 0; t < lengths[i]; ++t) {
          const int32_t label = links->labels[following.place(k, t)];
          const int64_t frame = firsts[row] + t;
          if (label >= 0) tail.append({label, frame, frame + 1, totals[t], totals[t + 1]});
          else if (label == INSIDE && tail.size() > 0) tail.extend_last(frame + 1, totals[t + 1]);
        }
      }
    }
    return -1;
  });
}

// Steps of a transducer's search: links, labels, `moves` and `confidences` [steps, S, K]; `times` [S, K] are the frames at
// which hypotheses were before.
NGPULM_EXPORT int64_t ngpulm_history_steps(int64_t count, const int64_t* rows, int64_t streams, const NgpulmLinks* links, const int32_t* moves,
                                           const float* confidences, const int64_t* times, int64_t blank, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Following following(*tails, *links);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[i], num_beams = tails->num_beams;
      following.begin(row, row * num_beams, streams * num_beams, links->length);
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!following.is_live(row, k)) continue;
        Tail tail(*tails, row, k);
        int64_t time = times[row * num_beams + following.origin(k)];
        for (int64_t step = 0; step < links->length; ++step) {
          const int64_t at = following.place(k, step);
          if (links->labels[at] == STILL) continue;
          if (links->labels[at] != blank)
            tail.append({links->labels[at], time, time + std::max<int64_t>(moves[at], 1), 0.0, confidences[at]});
          time += moves[at];
        }
      }
    }
    return -1;
  });
}

// Move what all live hypotheses of some rows begin with to `out` (`counts` tokens of each row), but for `kept` last tokens;
// `common` [S] becomes the number of tokens that all tails begin with then. Returns how many tokens there are.
NGPULM_EXPORT int64_t ngpulm_history_hand_over(int64_t count, const int64_t* rows, const uint8_t* live, int64_t kept, int64_t* counts,
                                               int64_t* common, const NgpulmTails* out, const NgpulmTails* tails) {
  return guarded([&] {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[i], num_beams = tails->num_beams;
      int64_t first = -1, shortest = 0;
      for (int64_t k = 0; k < num_beams; ++k)
        if (live[row * num_beams + k]) {
          const int64_t size = Tail(*tails, row, k).size();
          shortest = first < 0 ? size : std::min(shortest, size);
          first = first < 0 ? k : first;
        }
      int64_t same_ids = shortest, same = std::max<int64_t>(shortest - kept, 0);
      for (int64_t k = first + 1; first >= 0 && k < num_beams; ++k) {
        if (!live[row * num_beams + k]) continue;
        const Tail tail(*tails, row, k), other(*tails, row, first);
        int64_t at = 0;
        while (at < same_ids && tail.get(at).id == other.get(at).id) ++at;
        same_ids = at;
        for (at = 0; at < same; ++at) {
          const Token a = tail.get(at), b = other.get(at);
          if (a.id != b.id || a.start != b.start || a.end != b.end) break;
        }
        same = at;
      }
      counts[i] = same;
      common[row] = same_ids - same;
      if (!same) continue;
      Tail handed(*out, 0, 0);
      for (int64_t at = 0; at < same; ++at) handed.put(total++, Tail(*tails, row, first).get(at));
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!live[row * num_beams + k]) continue;
        Tail tail(*tails, row, k);
        tail.size() -= same;
        for (int64_t at = 0; at < tail.size(); ++at) tail.put(at, tail.get(at + same));
      }
    }
    return total;
  });
}
