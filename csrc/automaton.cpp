// Queries of a batch of states. Each function returns -1, or the first row whose state doesn't exist.
#include "automaton.hpp"

using namespace ngpulm;

NGPULM_EXPORT int64_t ngpulm_scores(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const int32_t* states,
                                    float* scores, int32_t* targets) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    std::vector<int32_t> chain;
    const int64_t width = lm.vocab_size;
    for (int64_t row = first; row < last; ++row) {
      if (!lm.has(states[row])) return row;
      lm.scores(states[row], chain, scores + row * width, targets ? targets + row * width : nullptr);
    }
    return -1;
  });
}

NGPULM_EXPORT int64_t ngpulm_step(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const int32_t* states,
                                  const int32_t* tokens, float* scores, int32_t* targets) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    for (int64_t row = first; row < last; ++row) {
      if (!lm.has(states[row])) return row;
      const Step step = lm.step(states[row], tokens[row]);
      scores[row] = step.score;
      targets[row] = step.state;
    }
    return -1;
  });
}

// Score tokens one after the other: `token_ids` and `scores` are [B, length].
NGPULM_EXPORT int64_t ngpulm_walk(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const int32_t* states,
                                  const int32_t* token_ids, const int32_t* lengths, int64_t length, float* scores,
                                  int32_t* last_states) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    for (int64_t row = first; row < last; ++row) {
      int32_t state = states[row];
      if (!lm.has(state)) return row;
      for (int64_t at = row * length; at < row * length + lengths[row]; ++at) {
        const Step step = lm.step(state, token_ids[at]);
        scores[at] = step.score;
        state = step.state;
      }
      last_states[row] = state;
    }
    return -1;
  });
}

// Compute the state after each row of tokens. A context of full length doesn't depend on earlier tokens and begins at the
// root; a shorter context depends on the start of the sentence.
NGPULM_EXPORT int64_t ngpulm_states_after(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const int32_t* starts,
                                          const int32_t* roots, const int32_t* token_ids, const int32_t* lengths,
                                          int64_t length, int64_t context_length, int32_t* last_states) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    for (int64_t row = first; row < last; ++row) {
      if (!lm.has(starts[row])) return row;
      const int32_t* tokens = token_ids + row * length;
      const auto is_scored = [&](int32_t token) { return token >= 0 && token < lm.vocab_size; };
      int64_t begin = lengths[row], seen = 0;
      while (begin > 0 && seen < context_length) seen += is_scored(tokens[--begin]);
      int32_t state = seen == context_length ? roots[row] : starts[row];
      for (int64_t at = begin; at < lengths[row]; ++at) state = lm.step(state, tokens[at]).state;
      last_states[row] = state;
    }
    return -1;
  });
}
