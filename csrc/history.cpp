// Tokens of the hypotheses of streams; see hf_ngpulm/search/history.py.
#include "history.hpp"

// The trace of `length` steps, [N, length, K] or [length, N, K]: each hypothesis's place in the beam before the step, and its
// label. `live` [S, K] marks the places that contain a hypothesis after the last step.
struct NgpulmLinks {
  const int32_t *links, *labels;
  const uint8_t* live;
  int64_t length;
};

using namespace ngpulm;

namespace {

constexpr int32_t STILL = -1;  // as in hf_ngpulm/search/transducer_beam/__init__.py

}  // namespace

// Append the tokens of greedy CTC search. `labels` and `confidences` are [N, longest]. The other arrays have a value for each
// stream: the index of the first new frame, the label before that frame, and the sum of all confidences before it. The latter
// two are updated.
NGPULM_EXPORT int64_t ngpulm_history_label(int64_t count, const int64_t* rows, const int32_t* labels, const int32_t* lengths,
                                           int64_t longest, const int64_t* firsts, int32_t* last, double* sums,
                                           const float* confidences, int64_t blank, const NgpulmTails* tails) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i], at = i * longest;
    follow_labels(*tails, row, labels + at, lengths[i], firsts[row], int32_t(blank), last[row], sums[row],
                  confidences ? confidences + at : nullptr);
  }
  return -1;
}

// Append the tokens of CTC beam search. Links and labels are [N, T, K], confidences [N, T]; `firsts` and `sums` are as above.
NGPULM_EXPORT int64_t ngpulm_history_frames(int64_t count, const int64_t* rows, const NgpulmLinks* links,
                                            const int32_t* lengths, const int64_t* firsts, double* sums,
                                            const float* confidences, const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Following following(*tails);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[i], at = i * links->length, num_beams = tails->num_beams;
      follow_frames(following, *tails, row, links->links + at * num_beams, links->labels + at * num_beams, lengths[i],
                    firsts[row], sums[row], confidences ? confidences + at : nullptr,
                    [&](int64_t k) { return links->live[row * num_beams + k]; });
    }
    return -1;
  });
}

// Append the tokens of a transducer's search. Links, labels, `moves` and `confidences` are [steps, S, K]; `times` [S, K] are
// the hypotheses' frames before the first step.
NGPULM_EXPORT int64_t ngpulm_history_steps(int64_t count, const int64_t* rows, int64_t streams, const NgpulmLinks* links,
                                           const int32_t* moves, const float* confidences, const int64_t* times, int64_t blank,
                                           const NgpulmTails* tails) {
  return guarded([&]() -> int64_t {
    Following following(*tails);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[i], num_beams = tails->num_beams, first = row * num_beams, stride = streams * num_beams;
      following.begin(row, links->links + first, stride, links->length, [&](int64_t k) { return links->live[first + k]; });
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!following.is_live(k)) continue;
        Tail tail(*tails, row, k);
        int64_t time = times[row * num_beams + following.origin(k)];
        for (int64_t step = 0; step < links->length; ++step) {
          const int64_t at = first + step * stride + following.place(k, step);
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

// Move the tokens that all live hypotheses of a row share, except the last `kept`, to `out` (`counts` tokens of each row).
// `common` [S] gets the number of tokens that all tails still share. Returns the number of tokens in `out`.
NGPULM_EXPORT int64_t ngpulm_history_hand_over(int64_t count, const int64_t* rows, const uint8_t* live, int64_t kept,
                                               int64_t* counts, int64_t* common, void* out, const NgpulmTails* tails) {
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
        Tail tail(*tails, row, k), other(*tails, row, first);
        int64_t at = 0;
        while (at < same_ids && tail[at].id == other[at].id) ++at;
        same_ids = at;
        for (at = 0; at < same; ++at)
          if (tail[at].id != other[at].id || tail[at].start != other[at].start || tail[at].end != other[at].end) break;
        same = at;
      }
      counts[i] = same;
      common[row] = same_ids - same;
      if (!same) continue;
      std::copy_n(Tail(*tails, row, first).begin(), same, static_cast<Token*>(out) + total);
      total += same;
      for (int64_t k = 0; k < num_beams; ++k) {
        if (!live[row * num_beams + k]) continue;
        Tail tail(*tails, row, k);
        std::copy(tail.begin() + same, tail.end(), tail.begin());
        tail.size() -= same;
      }
    }
    return total;
  });
}
