// Weighted LM scores of a transducer's classes.
#pragma once
#include <memory>

#include "transducer_beam.hpp"

namespace ngpulm {

// A cache of the scores of all tokens by state, because other hypotheses and rows reach the same states.
template <class LM>
class KeptScores {
 public:
  // Args: calls: approximate number of queries.
  KeptScores(const LM& lm, int64_t vocab_size, int64_t calls) : lm_(lm), size_(std::max<int64_t>(vocab_size, 1)) {
    constexpr int64_t FLOATS = 1 << 18;  // fits into the second-level cache
    while (bits_ < 12 && (2 << bits_) * size_ <= FLOATS && (1 << bits_) < calls) ++bits_;
    states_.assign(size_t(1) << bits_, -1);
    scores_.reset(new float[states_.size() * size_]);
  }

  // Prefetch the arcs of some states together, because each separate access would wait for memory.
  void read_ahead(std::vector<int32_t>& states) const {
    for (const int32_t state : states) lm_.finish(state);
    for (bool any = true; any;) {
      any = false;
      for (int32_t& state : states) {
        if (state < 0) continue;
        __builtin_prefetch(lm_.backoff_weights + state);
        const int32_t low = lm_.arc_offsets[state], backoff = lm_.backoff_states[state];
        if (backoff != state) __builtin_prefetch(lm_.arc_tokens + low), __builtin_prefetch(lm_.arc_weights + low);
        state = backoff != state ? backoff : -1;
        any |= state >= 0;
      }
    }
  }

  bool has(int32_t state) const { return states_[place_of(state)] == state; }

  const float* of(int32_t state) {
    const uint32_t place = place_of(state);
    float* scores = scores_.get() + place * size_;
    if (states_[place] != state) lm_.scores(states_[place] = state, chain_, scores);
    return scores;
  }

 private:
  uint32_t place_of(int32_t state) const { return bits_ ? (uint32_t(state) * 2654435769u) >> (32 - bits_) : 0; }

  const LM& lm_;
  int64_t size_;
  int bits_ = 0;
  std::vector<int32_t> states_, chain_;
  std::unique_ptr<float[]> scores_;
};

template <class LM>
class Lines {
 public:
  Lines(const LM& lm, const NgpulmBeamSettings& rules, const NgpulmBeam& beam, const float* weights, int64_t classes,
        int64_t calls)
      : rules_(rules), beam_(beam), weights_(weights), classes_(classes), kept_(lm, rules.vocab_size, calls) {}

  float* of(int64_t row, int64_t slot) const { return beam_.lines + (row * beam_.slots_of_row + slot) * classes_; }

  // Prepare for calls of `fill` for some hypotheses, given by their places among all hypotheses.
  void read_ahead(const std::vector<int64_t>& hypotheses) {
    ahead_.clear();
    for (int64_t at : hypotheses)
      for (int64_t m = at * beam_.num_automata; m < (at + 1) * beam_.num_automata; ++m)
        if (!kept_.has(beam_.lm_states[m])) ahead_.push_back(beam_.lm_states[m]);
    kept_.read_ahead(ahead_);
  }

  // Write the scores that the automata add for hypothesis `k` of a row into the hypothesis's slot.
  void fill(int64_t row, int64_t k) {
    const int64_t scored = std::min(rules_.vocab_size, classes_), automata = beam_.num_automata, at = row * beam_.num_beams + k;
    const float* weights = weights_ + row * automata;
    float* __restrict line = of(row, beam_.slots[at]);
    // A class that no LM scores counts as one of V equally likely tokens. With a score of 0 it would win merely because it
    // costs nothing.
    float total = 0.f;
    for (int64_t m = 0; m < rules_.num_lms; ++m) total += weights[m];
    std::fill(line + scored, line + classes_, rules_.vocab_size ? -total * std::log(float(rules_.vocab_size)) : 0.f);
    bool is_first = true;
    for (int64_t m = 0; m < automata; ++m) {
      const float weight = weights[m];
      if (weight == 0.f) continue;
      const float* scores = kept_.of(beam_.lm_states[at * automata + m]);
      if (is_first)
        for (int64_t c = 0; c < scored; ++c) line[c] = weight * scores[c];
      else
        for (int64_t c = 0; c < scored; ++c) line[c] += weight * scores[c];
      is_first = false;
    }
    if (is_first) std::fill_n(line, scored, 0.f);
  }

 private:
  const NgpulmBeamSettings& rules_;
  const NgpulmBeam& beam_;
  const float* weights_;
  int64_t classes_;
  KeptScores<LM> kept_;
  std::vector<int32_t> ahead_;
};

}  // namespace ngpulm
