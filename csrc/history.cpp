// What hypotheses of many streams consist of (hf_ngpulm/decoding/sessions/history.py tells of it): the tokens of each that haven't
// been handed over yet, its tail, rewritten as a search goes on. `rows` name the streams that something has come of.
#include "frames.hpp"

// As hf_ngpulm/decoding/sessions/history.py declares it: [S, K] sizes, and [S, K, room] of the rest.
struct NgpulmTails {
  int64_t* sizes;
  int32_t* ids;
  int64_t* starts;
  int64_t* ends;
  double* before;
  double* after;
  int64_t num_beams;
  int64_t room;
};

using namespace ngpulm;

namespace {

constexpr int64_t STILL = -1;  // the label of a step at which a hypothesis stays as it is

struct Spoken {
  int32_t id;
  int64_t start, end;
  double before, after;  // sums of the confidences of all frames before it, and of those and its own
};

class Tails {
 public:
  explicit Tails(const NgpulmTails& tails) : t(tails), origins(tails.num_beams), old_sizes(tails.num_beams) {}

  std::vector<int64_t>& origins_of_row() { return origins; }
  int64_t& size(int64_t row, int64_t k) const { return t.sizes[row * t.num_beams + k]; }

  Spoken token(int64_t row, int64_t k, int64_t place) const {
    const int64_t at = at_of(row, k) + place;
    return {t.ids[at], t.starts[at], t.ends[at], t.before[at], t.after[at]};
  }

  void write(int64_t at, const Spoken& token) const {
    t.ids[at] = token.id, t.starts[at] = token.start, t.ends[at] = token.end;
    t.before[at] = token.before, t.after[at] = token.after;
  }

  void append(int64_t row, int64_t k, const Spoken& token) const {
    if (size(row, k) < t.room) write(at_of(row, k) + size(row, k)++, token);  // there is room: the caller has made it
  }

  // The last token goes on.
  void go_on(int64_t row, int64_t k, int64_t end, double after) const {
    if (size(row, k) == 0) return;
    const int64_t at = at_of(row, k) + size(row, k) - 1;
    t.ends[at] = end, t.after[at] = after;
  }

  void drop_first(int64_t row, int64_t k, int64_t count) const {
    size(row, k) -= count;
    for (int64_t place = 0; place < size(row, k); ++place) write(at_of(row, k) + place, token(row, k, place + count));
  }

  // Have each hypothesis of a row begin as that at another place (its origin; below 0 for none) did.
  void take_origins(int64_t row) {
    bool have_moved = false;
    for (int64_t k = 0; k < t.num_beams; ++k) have_moved |= origins[k] >= 0 && origins[k] != k;
    if (!have_moved) return;
    std::copy_n(&size(row, 0), t.num_beams, old_sizes.begin());
    const int64_t longest = *std::max_element(old_sizes.begin(), old_sizes.end());
    old.clear();
    for (int64_t k = 0; k < t.num_beams; ++k)
      for (int64_t place = 0; place < longest; ++place) old.push_back(token(row, k, place));
    for (int64_t k = 0; k < t.num_beams; ++k) {
      const int64_t origin = origins[k];
      if (origin < 0 || origin == k) continue;
      size(row, k) = old_sizes[origin];
      for (int64_t place = 0; place < old_sizes[origin]; ++place) write(at_of(row, k) + place, old[origin * longest + place]);
    }
  }

 private:
  const NgpulmTails& t;
  std::vector<int64_t> origins, old_sizes;
  std::vector<Spoken> old;

  int64_t at_of(int64_t row, int64_t k) const { return (row * t.num_beams + k) * t.room; }
};

// How many tokens of two tails are the same, up to a limit.
template <class IsSame>
int64_t count_same(const Tails& tails, int64_t row, int64_t a, int64_t b, int64_t limit, IsSame&& is_same) {
  int64_t count = 0;
  while (count < limit && is_same(tails.token(row, a, count), tails.token(row, b, count))) ++count;
  return count;
}

bool is_same_id(const Spoken& a, const Spoken& b) { return a.id == b.id; }
bool is_same(const Spoken& a, const Spoken& b) { return a.id == b.id && a.start == b.start && a.end == b.end; }

}  // namespace

// Frames of greedy CTC search: `labels` and `confidences` [N, width]; by stream the number of the first of them, the label before
// that, and the sum of the confidences before.
NGPULM_EXPORT int64_t ngpulm_history_label(const int64_t* rows, int64_t num_rows, const int32_t* labels, const int64_t* lengths,
                                           const float* confidences, int64_t width, const int64_t* firsts, int64_t* last_labels,
                                           double* sums, int64_t blank, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    const Tails t(*tails);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = rows[i];
      for (int64_t at = 0; at < lengths[i]; ++at) {
        const int64_t frame = firsts[row] + at;
        const int32_t label = labels[i * width + at];
        const double before = sums[row];
        sums[row] += confidences[i * width + at];
        if (label != blank && label == last_labels[row]) t.go_on(row, 0, frame + 1, sums[row]);
        else if (label != blank) t.append(row, 0, {label, frame, frame + 1, before, sums[row]});
        last_labels[row] = label;
      }
    }
    return -1;
  });
}

// Frames of CTC beam search: `links` and `labels` [N, width, K], see hf_ngpulm/search/ctc_beam; `live` [S, K]. Returns -1, or the
// first stream with a link outside of its beam.
NGPULM_EXPORT int64_t ngpulm_history_follow_frames(const int64_t* rows, int64_t num_rows, const int32_t* links, const int32_t* labels,
                                                   const int64_t* lengths, const float* confidences, int64_t width, const int64_t* firsts,
                                                   double* sums, const uint8_t* live, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Tails t(*tails);
    const int64_t num_beams = tails->num_beams;
    std::vector<int64_t> places(num_beams * width);
    std::vector<double> totals(width + 1);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = rows[i], length = lengths[i];
      const uint8_t* is_live = live + row * num_beams;
      totals[0] = sums[row];
      for (int64_t at = 0; at < length; ++at) totals[at + 1] = totals[at] + confidences[i * width + at];
      sums[row] = totals[length];
      for (int64_t k = 0; k < num_beams; ++k) {
        int64_t place = k;
        for (int64_t at = length; is_live[k] && at-- > 0;) {
          places[k * width + at] = place;
          place = links[(i * width + at) * num_beams + place];
          if (place < 0 || place >= num_beams) return row;
        }
        t.origins_of_row()[k] = is_live[k] ? place : -1;
      }
      t.take_origins(row);
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!is_live[k]) t.size(row, k) = 0;
        for (int64_t at = 0; is_live[k] && at < length; ++at) {
          const int32_t label = labels[(i * width + at) * num_beams + places[k * width + at]];
          const int64_t frame = firsts[row] + at;
          if (label >= 0) t.append(row, k, {label, frame, frame + 1, totals[at], totals[at + 1]});
          else if (label == INSIDE) t.go_on(row, k, frame + 1, totals[at + 1]);
        }
      }
    }
    return -1;
  });
}

// Steps of a transducer's beam search: `links`, `labels`, `moves` and `confidences` [num_steps, S, K], `times` [S, K] the frames at
// which hypotheses were before. Returns -1, or the first stream with a link outside of its beam.
NGPULM_EXPORT int64_t ngpulm_history_follow_steps(const int64_t* rows, int64_t num_rows, const int64_t* links, const int64_t* labels,
                                                  const int64_t* moves, const float* confidences, int64_t num_steps, int64_t num_streams,
                                                  const int64_t* times, const uint8_t* live, int64_t blank, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Tails t(*tails);
    const int64_t num_beams = tails->num_beams;
    std::vector<int64_t> places(num_beams * num_steps);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = rows[i];
      const uint8_t* is_live = live + row * num_beams;
      for (int64_t k = 0; k < num_beams; ++k) {
        int64_t place = k;
        for (int64_t step = num_steps; is_live[k] && step-- > 0;) {
          places[k * num_steps + step] = place;
          place = links[(step * num_streams + row) * num_beams + place];
          if (place < 0 || place >= num_beams) return row;
        }
        t.origins_of_row()[k] = is_live[k] ? place : -1;
      }
      t.take_origins(row);
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!is_live[k]) {
          t.size(row, k) = 0;
          continue;
        }
        int64_t time = times[row * num_beams + t.origins_of_row()[k]];
        for (int64_t step = 0; step < num_steps; ++step) {
          const int64_t at = (step * num_streams + row) * num_beams + places[k * num_steps + step];
          if (labels[at] == STILL) continue;
          if (labels[at] != blank)
            t.append(row, k, {int32_t(labels[at]), time, time + std::max<int64_t>(moves[at], 1), 0.0, confidences[at]});
          time += moves[at];
        }
      }
    }
    return -1;
  });
}

// Steps of greedy transducer search, in order within each stream; `times` [S] are the frames at which streams were before.
NGPULM_EXPORT int64_t ngpulm_history_append_steps(const int64_t* rows, const int64_t* labels, const int64_t* moves, const float* confidences,
                                                  int64_t num_steps, int64_t* times, int64_t blank, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    const Tails t(*tails);
    for (int64_t i = 0; i < num_steps; ++i) {
      int64_t& time = times[rows[i]];
      if (labels[i] != blank)
        t.append(rows[i], 0, {int32_t(labels[i]), time, time + std::max<int64_t>(moves[i], 1), 0.0, confidences[i]});
      time += moves[i];
    }
    return -1;
  });
}

// Take what all live hypotheses have in common, with its times, but for the last `kept` tokens, from the tails; write it to `out`, one
// row of streams after the other, and of each row the number of its tokens and how many more all tails begin with.
NGPULM_EXPORT int64_t ngpulm_history_hand_over(const int64_t* rows, int64_t num_rows, const uint8_t* live, int64_t kept, int64_t* counts,
                                               int64_t* common, const NgpulmTails* out, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    const Tails t(*tails), written(*out);
    const int64_t num_beams = tails->num_beams;
    int64_t count = 0;
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = rows[i];
      const uint8_t* is_live = live + row * num_beams;
      const int64_t first = std::find(is_live, is_live + num_beams, 1) - is_live;
      int64_t shortest = first < num_beams ? t.size(row, first) : 0;
      for (int64_t k = first; k < num_beams; ++k)
        if (is_live[k]) shortest = std::min(shortest, t.size(row, k));
      int64_t same_ids = shortest, same = std::max<int64_t>(shortest - kept, 0);
      for (int64_t k = first + 1; k < num_beams; ++k) {
        if (!is_live[k]) continue;
        same_ids = count_same(t, row, first, k, same_ids, is_same_id);
        same = count_same(t, row, first, k, same, is_same);
      }
      counts[i] = same;
      common[row] = same_ids - same;
      for (int64_t place = 0; place < same; ++place) written.write(count++, t.token(row, first, place));
      for (int64_t k = first; k < num_beams && same; ++k)
        if (is_live[k]) t.drop_first(row, k, same);
    }
    return -1;
  });
}
