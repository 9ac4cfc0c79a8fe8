// State of beam searches for transducers. hf_ngpulm/search/transducer_beam/cpu.py explains the arrays;
// hf_ngpulm/search/transducer_beam/reference.py is the definition.
#pragma once
#include "transducer.hpp"

// Settings of all rows: `aes_steps` is 0 for ALSD; the first `num_lms` automata are language models.
struct NgpulmBeamSettings {
  int64_t vocab_size, num_lms, max_symbols, aes_steps, most_extensions;
  double aes_gamma;
  uint8_t has_ilm, blank_aware, late, log_sum;
};

// Hypotheses [B, K] with the automata's states and scores [B, K, M]; an empty place has the score -inf. `shares` count when
// the best hypotheses are chosen, but aren't part of the scores. Each row has `slots` slots. A slot holds a prediction and the
// weighted LM scores of all classes (`lines` [B * slots, C]; null without LMs) after some tokens. Hypotheses with the same
// tokens share a slot. `slot_hashes` and `slot_sizes` identify the tokens (size -1: none). `slot_uses` [B, slots + 1] is the
// time of a slot's last use; the last column is the row's clock.
struct NgpulmBeam {
  double *scores, *acoustic_scores, *shares;
  int64_t *times, *symbols, *sizes, *last_tokens, *hashes, *parent_hashes, *slots;
  int32_t* lm_states;
  float *lm_scores, *lines;
  int64_t *bad_frames, *slot_hashes, *slot_sizes, *slot_uses, num_beams, num_automata, slots_of_row;
};

// For each row: its number of frames; the frame before which hypotheses must continue; the largest number of frames that a
// step can advance if more frames may come (see `open`); the number of steps at this frame (AES); the automata's weights [B,
// M]; the sum of the LMs' weights; and the internal LM's weight.
struct NgpulmBeamRows {
  int64_t *lengths, *limits;
  const int64_t* reaches;
  int64_t* phases;
  const float *weights, *totals, *ilm_weights;
};

namespace ngpulm {

constexpr int32_t STILL = -1;  // label of a step in which a hypothesis doesn't move, as in networks/search.py

struct Hypothesis {
  double score, acoustic_score, share;
  int64_t time, symbols, size, last_token, hash, parent_hash, slot;

  bool is_live() const { return score > NEG_INF_DOUBLE; }
  bool has_tokens_of(int64_t other_hash, int64_t other_size) const { return hash == other_hash && size == other_size; }
};

inline Hypothesis take(const NgpulmBeam& beam, int64_t row, int64_t k) {
  const int64_t i = row * beam.num_beams + k;
  return {beam.scores[i], beam.acoustic_scores[i], beam.shares[i], beam.times[i],         beam.symbols[i],
          beam.sizes[i],  beam.last_tokens[i],     beam.hashes[i], beam.parent_hashes[i], beam.slots[i]};
}

inline void put(const NgpulmBeam& beam, int64_t row, int64_t k, const Hypothesis& h) {
  const int64_t i = row * beam.num_beams + k;
  beam.scores[i] = h.score, beam.acoustic_scores[i] = h.acoustic_score, beam.shares[i] = h.share, beam.times[i] = h.time;
  beam.symbols[i] = h.symbols, beam.sizes[i] = h.size, beam.last_tokens[i] = h.last_token;
  beam.hashes[i] = h.hash, beam.parent_hashes[i] = h.parent_hash, beam.slots[i] = h.slot;
}

// Write the places of a row's hypotheses that must continue to `found`. In ALSD these are the hypotheses before the limit.
// There are none if the next step of a hypothesis might lead past the limit: that step depends on frames that haven't
// arrived, and the frontier must not advance without it. In AES, when all hypotheses have taken their blank, the row moves to
// the next frame.
inline void open(const NgpulmBeam& beam, const NgpulmBeamRows& rows, const NgpulmBeamSettings& rules, int64_t row,
                 std::vector<int32_t>& found) {
  const double* scores = beam.scores + row * beam.num_beams;
  const int64_t* times = beam.times + row * beam.num_beams;
  for (;;) {
    int64_t latest = -1;
    found.clear();
    for (int32_t k = 0; k < beam.num_beams; ++k)
      if (scores[k] > NEG_INF_DOUBLE) {
        latest = std::max(latest, times[k]);
        if (times[k] < rows.limits[row]) found.push_back(k);
      }
    if (latest + rows.reaches[row] > rows.limits[row]) found.clear();
    if (!found.empty() || !rules.aes_steps || rows.limits[row] >= rows.lengths[row]) return;
    ++rows.limits[row];
    rows.phases[row] = 0;
  }
}

// Collects the `most` values with the highest ranks, the highest first. In a tie, earlier values win.
class Best {
 public:
  void begin(int64_t most) {
    most_ = most, size_ = 0;
    if (int64_t(ranks_.size()) < most) ranks_.resize(most), values_.resize(most);
  }
  bool takes(double rank) const { return size_ < most_ || (most_ && rank > ranks_[size_ - 1]); }
  void insert(double rank, int64_t value) {
    if (!takes(rank)) return;
    double* ranks = ranks_.data();
    int64_t *values = values_.data(), at = size_ < most_ ? size_++ : size_ - 1;
    for (; at > 0 && ranks[at - 1] < rank; --at) ranks[at] = ranks[at - 1], values[at] = values[at - 1];
    ranks[at] = rank, values[at] = value;
  }
  int64_t size() const { return size_; }
  double rank(int64_t place) const { return ranks_[place]; }
  int64_t value(int64_t place) const { return values_[place]; }

 private:
  std::vector<double> ranks_;
  std::vector<int64_t> values_;
  int64_t most_ = 0, size_ = 0;
};

}  // namespace ngpulm
