// Common parts of CTC searches: rows of batches, and the scores of hypotheses at the end of utterances.
#pragma once
#include "automaton.hpp"
#include "history.hpp"

// The rows of a session to which a batch belongs. See hf_ngpulm/search/ctc_rows.py.
struct NgpulmCtcRows {
  const int64_t* rows;
  void* states;
  const int64_t* firsts;
  double* sums;
};

struct NgpulmCtcModels {
  const float* weights;
  const uint8_t* present;
  int64_t num_automata, num_lms, end;
};

struct NgpulmRanked {
  int32_t *places, *sizes;
  double* scores;
  int64_t count;
};

namespace ngpulm {

inline int64_t row_of(const NgpulmCtcRows& batch, int64_t i) { return batch.rows ? batch.rows[i] : i; }

// The kinds of score for an utterance's end: none; the repaid bonuses of unfinished phrases; or these and </s>.
enum End : int64_t { GOES_ON, PHRASES, SENTENCE };

// The total score of a hypothesis, its acoustic score, and the unweighted scores of the LMs (without </s>) and of the phrases.
struct HypothesisScores {
  double total, acoustic, of_lms, of_phrases;
};

template <class Token, class Score>
HypothesisScores scores_at_end(const Automaton<Token>& lm, const NgpulmCtcModels& models, int64_t row, double acoustic,
                               double total, const Score* lm_scores, const int32_t* lm_states) {
  HypothesisScores result{total, acoustic, 0.0, 0.0};
  for (int64_t m = 0; m < models.num_automata && total > NEG_INF_DOUBLE; ++m) {
    const int64_t of_row = row * models.num_automata + m;
    if (!models.present[of_row]) continue;
    const bool is_lm = m < models.num_lms, counts = models.end == SENTENCE || (models.end == PHRASES && !is_lm);
    const float final = counts ? lm.step(lm_states[m], lm.vocab_size, lm.vocab_size + 1).score : 0.f;
    result.total += double(models.weights[of_row]) * double(final);
    if (is_lm)
      result.of_lms += double(lm_scores[m]);
    else
      result.of_phrases += double(lm_scores[m]) + double(final);
  }
  return result;
}

}  // namespace ngpulm
