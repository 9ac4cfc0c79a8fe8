// Greedy search for transducers by label looping (Bataev et al., SLT 2024, arXiv 2406.06220). The definition is
// hf_ngpulm/search/transducer_greedy/reference.py.
//
// The prediction changes only with a token. So the joint network runs on a window of frames at once, and `follow_blanks`
// skips the blanks before the first token. A few rows are searched at a time, so that each product of matrices serves several
// rows. When a row has ended, the next row takes its place.
#include "networks.hpp"
#include "transducer.hpp"

// See hf_ngpulm/search/transducer_greedy/cpu.py.
struct NgpulmGreedyRules {
  int64_t vocab_size, max_symbols;
  uint8_t has_ilm;
};

struct NgpulmGreedyRows {
  const int64_t* ends;
  const float *weights, *ilm_weights;
  int64_t *times, *symbols;
  int32_t* lm_states;
  double* acoustic_scores;
  float* lm_scores;
  double* ilm_scores;
  int64_t *bad_frames, num_automata;
};

namespace ngpulm {

namespace {

constexpr int64_t ROWS = 32;  // searched together

// The model's best class at the first frame whose best class isn't the blank.
struct Said {
  int64_t place = -1;  // in the window; -1 if all frames are blank
  int64_t token = -1, move = 0;
  double log_sum = 0.0, duration_log_prob = 0.0;
};

template <class LM>
class Greedy {
 public:
  Greedy(const LM& lm, const NgpulmClasses& classes, const NgpulmGreedyRules& rules, const NgpulmGreedyRows& rows,
         const NgpulmSteps& steps)
      : lm_(lm),
        classes_(classes),
        rules_(rules),
        rows_(rows),
        steps_(steps),
        fused_(classes.tokens),
        one_(std::max<int64_t>(rules.vocab_size, 1)) {}

  bool goes_on(int64_t row) const { return rows_.times[row] < rows_.ends[row] && rows_.bad_frames[row] < 0; }

  bool has_states(int64_t row) const { return lm_.has_all(rows_.lm_states + row * rows_.num_automata, rows_.num_automata); }

  // Advance a row over the blanks of a window; in a TDT, by the blanks' durations.
  Said follow_blanks(int64_t row, const float* logits, int64_t stride, int64_t frames) {
    const int64_t tokens = classes_.tokens, blank = classes_.blank;
    for (int64_t place = 0; place < frames;) {
      const float* line = logits + place * stride;
      const Normaliser said = normaliser_of(line, tokens);
      int64_t move = said.best == blank;
      double duration_log_prob = 0.0;
      if (classes_.num_durations) {
        const Normaliser duration = normaliser_of(line + tokens, classes_.num_durations);
        move = classes_.durations[duration.best];
        duration_log_prob = line[tokens + duration.best] - duration.log_sum;
      }
      if (!std::isfinite(said.log_sum + duration_log_prob)) {
        rows_.bad_frames[row] = rows_.times[row];
        break;
      }
      if (said.best != blank) return {place, said.best, move, said.log_sum, duration_log_prob};
      move = std::max<int64_t>(move, 1);
      rows_.acoustic_scores[row] += line[blank] - said.log_sum + duration_log_prob;
      put(row, blank, move, 0.f);
      rows_.symbols[row] = 0;
      rows_.times[row] += move;
      place += move;
    }
    return {};
  }

  // Choose the token with the LMs, starting from the model's best token, and advance. `internal` are the internal LM's
  // log-probabilities; null if it isn't subtracted. `said` gets the choice.
  void choose(int64_t row, const float* logits, const float* internal, Said& said) {
    const float* weights = rows_.weights + row * rows_.num_automata;
    int32_t* states = rows_.lm_states + row * rows_.num_automata;
    float* lm_scores = rows_.lm_scores + row * rows_.num_automata;
    const bool listens = std::any_of(weights, weights + rows_.num_automata, [](float weight) { return weight != 0.f; });
    const int64_t candidates = listens ? std::min(rules_.vocab_size, classes_.tokens) : classes_.tokens;
    const double score = said.duration_log_prob - said.log_sum;
    // The confidence is that of the acoustic model in its own best class.
    const float sum = classes_.measure < 0 ? 0.f : sum_for_confidence(classes_, logits, said.log_sum, logits[said.token]);
    const float ilm_weight = internal ? rows_.ilm_weights[row] : 0.f;
    if (said.token < candidates && (listens || ilm_weight != 0.f)) {
      float* fused = std::copy_n(logits, candidates, fused_.data()) - candidates;
      for (int64_t m = 0; m < rows_.num_automata; ++m)
        if (weights[m] != 0.f) {
          lm_.scores(states[m], chain_, one_.data());
          for (int64_t c = 0; c < candidates; ++c) fused[c] += weights[m] * one_[c];
        }
      if (ilm_weight != 0.f)
        for (int64_t c = 0; c < candidates; ++c) fused[c] -= ilm_weight * internal[c];
      for (int64_t c = 0; c < candidates; ++c) fused[c] = fused[c] == fused[c] ? fused[c] : NEG_INF;  // impossible classes
      if (classes_.blank < candidates) fused[classes_.blank] = NEG_INF;
      const float highest = highest_of(fused, candidates);
      if (highest > NEG_INF) said.token = first_at_least(fused, candidates, highest);  // otherwise huge weights overflowed
      if (ilm_weight != 0.f) rows_.ilm_scores[row] += internal[said.token];
    }
    for (int64_t m = 0; m < rows_.num_automata; ++m) {
      const Step step = lm_.step(states[m], int32_t(said.token));
      states[m] = step.state;
      lm_scores[m] += step.score;
    }
    rows_.acoustic_scores[row] += logits[said.token] + score;
    rows_.symbols[row] += 1;
    if (said.move == 0 && rows_.symbols[row] >= rules_.max_symbols) said.move = 1;
    if (said.move > 0) {
      rows_.symbols[row] = 0;
      rows_.times[row] += said.move;
    }
    put(row, said.token, said.move, sum);
  }

 private:
  void put(int64_t row, int64_t token, int64_t move, float sum) {
    const int64_t at = steps_.used[row]++ * steps_.batch + row;
    steps_.labels[at] = int32_t(token), steps_.moves[at] = int32_t(move), steps_.sums[at] = sum;
  }

  const LM& lm_;
  const NgpulmClasses& classes_;
  const NgpulmGreedyRules& rules_;
  const NgpulmGreedyRows& rows_;
  const NgpulmSteps& steps_;
  Floats fused_, one_;
  std::vector<int32_t> chain_;
};

}  // namespace

}  // namespace ngpulm

using namespace ngpulm;

// For networks that run outside the core: search the rows `numbers` through a window of frames, up to their first token.
// `tokens` gets that token, or -1. `logits` are [numbers, window, C]. `internal` [rows, tokens] are the internal LM's
// log-probabilities, or null if it isn't subtracted. Returns -1, or the first row whose states don't exist.
NGPULM_EXPORT int64_t ngpulm_greedy_window(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                           const NgpulmClasses* classes, const NgpulmGreedyRules* rules,
                                           const NgpulmGreedyRows* rows, const NgpulmSteps* steps, const int64_t* numbers,
                                           const float* logits, const float* internal, int64_t window, int64_t* tokens) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    Greedy search(lm, *classes, *rules, *rows, *steps);
    const int64_t outputs = classes->tokens + classes->num_durations;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = numbers[i];
      if (!search.has_states(row)) return row;
      Said said = search.follow_blanks(row, logits + i * window * outputs, outputs,
                                       std::min(window, rows->ends[row] - rows->times[row]));
      if (said.place >= 0)
        search.choose(row, logits + (i * window + said.place) * outputs, internal ? internal + row * classes->tokens : nullptr,
                      said);
      tokens[i] = said.token;
    }
    return -1;
  });
}

// Search rows to their ends, or until the room for steps is used up. The networks' state of a row that has `begun` is in the
// slot with the row's number. `frames` are [rows, longest, D]. Returns -1, or the first row whose states don't exist.
NGPULM_EXPORT int64_t ngpulm_greedy_rows(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                         const NgpulmClasses* classes, const NgpulmGreedyRules* rules,
                                         const NgpulmGreedyRows* rows, const NgpulmSteps* steps, const NgpulmNetworks* networks,
                                         const NgpulmSlots* slots, uint8_t* begun, const float* frames, int64_t longest,
                                         int64_t window) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    Greedy search(lm, *classes, *rules, *rows, *steps);
    const int64_t most = std::max<int64_t>(1, std::min(ROWS, last - first));
    Networks network(*networks, *slots, most, most * window);
    std::vector<int64_t> going, emitting, tokens;
    std::vector<Said> said(most);
    int64_t following = first, begins_as = -1;  // rows that begin copy the initial state of the first one
    const auto has_room = [&](int64_t row) { return steps->used[row] + window <= steps->room; };
    for (int64_t row = first; row < last; ++row) {
      if (!search.has_states(row)) return row;
      if (begun[row] || !search.goes_on(row)) continue;
      if (begins_as < 0)
        network.begin(row, classes->blank);
      else
        network.copy(begins_as, row);
      begins_as = row, begun[row] = true;
    }
    for (;;) {
      // Replace rows that have ended by the next rows.
      size_t kept = 0;
      for (int64_t row : going)
        if (search.goes_on(row) && has_room(row)) going[kept++] = row;
      going.resize(kept);
      for (; int64_t(going.size()) < most && following < last; ++following)
        if (search.goes_on(following) && has_room(following)) going.push_back(following);
      if (going.empty()) return -1;

      int64_t lines = 0;
      for (int64_t row : going)
        for (int64_t time = rows->times[row]; time < std::min(rows->times[row] + window, rows->ends[row]); ++time)
          network.hear(lines++, frames + (row * longest + time) * networks->width, row);
      network.join(lines, classes->blank);

      emitting.clear(), tokens.clear();
      lines = 0;
      for (int64_t row : going) {
        const int64_t line = lines, ahead = std::min(window, rows->ends[row] - rows->times[row]);
        lines += ahead;
        Said found = search.follow_blanks(row, network.logits(line), network.stride(), ahead);
        if (found.place < 0) continue;
        found.place += line;
        said[emitting.size()] = found;
        emitting.push_back(row);
      }
      const int64_t count = int64_t(emitting.size());
      if (rules->has_ilm) network.ask_internal_lm(count, emitting.data(), classes->blank, classes->tokens);
      for (int64_t i = 0; i < count; ++i) {
        const float* internal = rules->has_ilm ? network.internal_lm(i) : nullptr;
        search.choose(emitting[i], network.logits(said[i].place), internal, said[i]);
        tokens.push_back(said[i].token);
      }
      network.predict(count, emitting.data(), tokens.data(), emitting.data());
    }
  });
}
