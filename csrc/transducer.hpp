// Common parts of transducer searches: the classes of the joint network's outputs, and the confidence of a frame.
#pragma once
#include "automaton.hpp"
#include "vectors.hpp"

// See hf_ngpulm/search/networks/cpu.py. The logits are those of the token classes, including the blank, followed by those of
// the durations (an RNN-T has none). `measure` is an index into MEASURES of hf_ngpulm/search/confidence.py, or -1 for none.
struct NgpulmClasses {
  const int64_t* durations;
  int64_t num_durations, tokens, blank, measure;
  float alpha;
};

// The trace of rows with K hypotheses each, with room for `room` steps: links, labels, moves and sums [room, B, K]; see
// `Trace` in hf_ngpulm/search/networks/cpu.py. `used` [B] is the number of steps that each row has taken.
struct NgpulmSteps {
  int64_t* used;
  int32_t *links, *labels, *moves;
  float* sums;
  int64_t room, batch;
};

namespace ngpulm {

// Return the sum that `confidence_of_sums` takes for a frame. `best` is the logit of the class whose probability is measured.
inline float sum_for_confidence(const NgpulmClasses& classes, const float* logits, double log_sum, float best) {
  const auto total = float(log_sum);
  const auto log_prob = [=](float logit) { return at_least(logit - total, -1e4f); };
  const auto exp = [](float x) { return exp_as_part(at_least(x, -87.3f)); };
  const float alpha = classes.alpha;
  if (classes.measure == 0) return exp(best - total);
  if (classes.measure == 1)
    return float(sum_of(logits, classes.tokens, NEG_INF, [=](float logit) { return exp(log_prob(logit)) * log_prob(logit); }));
  return float(sum_of(logits, classes.tokens, NEG_INF, [=](float logit) { return exp(alpha * log_prob(logit)); }));
}

}  // namespace ngpulm
