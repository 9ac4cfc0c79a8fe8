// What searches of transducers share: the classes of the joint network's outputs, and the confidence in a frame.
#pragma once
#include "automaton.hpp"
#include "vectors.hpp"

// See hf_ngpulm/search/networks/cpu.py. Logits are those of the token classes, the blank among them, and after
// them those of the durations, of which an RNN-T has none. `measure` is a place among hf_ngpulm/search/confidence.py's
// MEASURES, -1 for none.
struct NgpulmClasses {
  const int64_t* durations;
  int64_t num_durations, tokens, blank, measure;
  float alpha;
};

// What rows with K hypotheses each did, and room for `room` steps: links, labels, moves and sums [room, B, K], see `Trace` in
// hf_ngpulm/search/networks/cpu.py. `used` [B] says how many steps each row has taken.
struct NgpulmSteps {
  int64_t* used;
  int32_t *links, *labels, *moves;
  float* sums;
  int64_t room, batch;
};

namespace ngpulm {

// What `confidence_of_sums` asks for at a frame; `best` is the logit of the class whose probability is meant.
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
