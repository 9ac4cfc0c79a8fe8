// Beam search for transducers: ALSD++ and AES++ (Grigoryan et al., arXiv 2506.00185); see
// hf_ngpulm/search/transducer_beam/__init__.py.
//
// A few rows are searched at a time. So each product of matrices serves many hypotheses, and its result is still in the cache
// when the search reads it. When a row has ended, the next row takes its place.
#include "networks.hpp"
#include "transducer_beam_step.hpp"

namespace ngpulm {

namespace {

constexpr int64_t HYPOTHESES = 48;  // approximate number of hypotheses searched at once
constexpr int64_t DONE = -1, NO_ROOM = -2;

// Subtract the internal LM's scores after new tokens from the LM scores.
void subtract_internal_lm(Networks& network, const std::vector<int64_t>& slots, const NgpulmClasses& classes,
                          const float* weights, const NgpulmBeam& beam) {
  network.ask_internal_lm(int64_t(slots.size()), slots.data(), classes.blank, classes.tokens);
  for (size_t i = 0; i < slots.size(); ++i) {
    const float *scores = network.internal_lm(int64_t(i)), weight = weights[slots[i] / beam.slots_of_row];
    float* line = beam.lines + slots[i] * classes.tokens;
    if (weight == 0.f) continue;
    for (int64_t c = 0; c < classes.tokens; ++c)
      if (c != classes.blank) line[c] -= weight * scores[c];
  }
}

// Frames [B, longest, width] of all rows.
struct AllFrames {
  const float* frames;
  int64_t longest, width;

  const float* at(int64_t row, int64_t time) const { return frames + (row * longest + time) * width; }
};

// Search rows, up to `held` rows at once, as far as their frames allow.
template <class LM>
int64_t search_rows(int64_t first, int64_t last, int64_t held, BeamStep<LM>& step, Networks& network, const AllFrames& frames,
                    const NgpulmClasses& classes, const NgpulmBeamSettings& rules, const NgpulmBeamRows& rows,
                    const NgpulmBeam& beam, const NgpulmSteps& steps) {
  const int64_t num_beams = beam.num_beams;
  std::vector<int64_t> going;
  std::vector<int32_t> opened;
  std::vector<const float*> logits(held * num_beams);
  NewTokens fresh;
  int64_t following = first, result = DONE;
  for (;;) {
    int64_t lines = 0;
    std::fill(logits.begin(), logits.end(), nullptr);
    for (size_t i = 0;;) {
      if (i == going.size()) {
        if (int64_t(i) == held || following == last) break;
        going.push_back(following++);
      }
      const int64_t row = going[i];
      open(beam, rows, rules, row, opened);
      if (opened.empty() || steps.used[row] + step.room(row) > steps.room) {
        if (!opened.empty()) result = NO_ROOM;
        going[i] = going.back();
        going.pop_back();
        continue;
      }
      for (int32_t k : opened) {
        const int64_t at = row * num_beams + k;
        network.hear(lines, frames.at(row, beam.times[at]), row * beam.slots_of_row + beam.slots[at]);
        logits[i * num_beams + k] = network.logits(lines++);
      }
      ++i;
    }
    if (going.empty()) return result;
    network.join(lines, classes.blank);
    fresh.clear();
    for (size_t i = 0; i < going.size(); ++i) step.run(going[i], [&](int64_t k) { return logits[i * num_beams + k]; }, fresh);
    if (!fresh.size()) continue;
    step.write_lines(fresh.hypotheses);
    network.predict(fresh.size(), fresh.sources.data(), fresh.tokens.data(), fresh.targets.data());
    if (rules.has_ilm) subtract_internal_lm(network, fresh.targets, classes, rows.ilm_weights, beam);
  }
}

}  // namespace

}  // namespace ngpulm

using namespace ngpulm;

// Write the scores that LMs add to each class after the hypotheses of the rows `rows[first]` .. `rows[last - 1]`, if there
// are any. Returns -1, or the first row whose states don't exist.
NGPULM_EXPORT int64_t ngpulm_beam_lines(int64_t first, int64_t last, const int64_t* numbers, const NgpulmAutomaton* automaton,
                                        const NgpulmClasses* classes, const NgpulmBeamSettings* rules,
                                        const NgpulmBeamRows* rows, const NgpulmBeam* beam, const NgpulmSteps* steps) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    BeamStep step(lm, *classes, *rules, *rows, *beam, *steps, last - first);
    std::vector<int64_t> live;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = numbers[i];
      if (!step.has_states(row)) return row;
      for (int64_t k = 0; k < beam->num_beams; ++k)
        if (take(*beam, row, k).is_live()) live.push_back(row * beam->num_beams + k);
    }
    step.write_lines(live);
    return DONE;
  });
}

// Write the prediction before the first token, and the internal LM's scores after it, to the first slot of some rows.
NGPULM_EXPORT int64_t ngpulm_beam_begin(int64_t first, int64_t last, const int64_t* numbers, const NgpulmClasses* classes,
                                        const NgpulmBeamSettings* rules, const NgpulmBeamRows* rows, const NgpulmBeam* beam,
                                        const NgpulmNetworks* networks, const NgpulmSlots* slots) {
  return guarded([&]() -> int64_t {
    if (first == last) return DONE;
    Networks network(*networks, *slots, 1, 1);
    for (int64_t i = first; i < last; ++i) {
      const int64_t slot = numbers[i] * beam->slots_of_row;
      if (i == first)
        network.begin(slot, classes->blank);
      else
        network.copy(numbers[first] * beam->slots_of_row, slot);
      if (rules->has_ilm) subtract_internal_lm(network, {slot}, *classes, rows->ilm_weights, *beam);
    }
    return DONE;
  });
}

// Search each row with the networks, as far as its frames [B, longest, D] allow. Returns -1; -2 if the room for steps was too
// small for a row (call again with more room); or the first row whose states don't exist.
NGPULM_EXPORT int64_t ngpulm_beam_rows(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                       const NgpulmClasses* classes, const NgpulmBeamSettings* rules,
                                       const NgpulmBeamRows* rows, const NgpulmBeam* beam, const NgpulmSteps* steps,
                                       const NgpulmNetworks* networks, const NgpulmSlots* slots, const float* frames,
                                       int64_t longest) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    const int64_t held = std::max<int64_t>(1, std::min(HYPOTHESES / beam->num_beams, last - first));
    BeamStep step(lm, *classes, *rules, *rows, *beam, *steps, (last - first) * longest);
    for (int64_t row = first; row < last; ++row)
      if (!step.has_states(row)) return row;
    Networks network(*networks, *slots, held * beam->num_beams, held * beam->num_beams);
    const AllFrames all{frames, longest, networks->width};
    return search_rows(first, last, held, step, network, all, *classes, *rules, *rows, *beam, *steps);
  });
}

// For networks that run outside the core: number the hypotheses of all rows that must continue. `lines` [B, K] gets their
// numbers, or -1. `slots` and `frames` get their slots and frames, numbered over all rows (`longest` frames each). Returns
// the number of hypotheses.
NGPULM_EXPORT int64_t ngpulm_beam_open(int64_t batch, const NgpulmBeamSettings* rules, const NgpulmBeamRows* rows,
                                       const NgpulmBeam* beam, int64_t longest, int64_t* lines, int64_t* slots,
                                       int64_t* frames) {
  return guarded([&] {
    int64_t count = 0;
    std::vector<int32_t> opened;
    std::fill_n(lines, batch * beam->num_beams, -1);
    for (int64_t row = 0; row < batch; ++row) {
      open(*beam, *rows, *rules, row, opened);
      for (int32_t k : opened) {
        const int64_t at = row * beam->num_beams + k;
        slots[count] = row * beam->slots_of_row + beam->slots[at];
        frames[count] = row * longest + beam->times[at];
        lines[at] = count++;
      }
    }
    return count;
  });
}

// Take one step with each row that has lines of `logits` [N, C]. New tokens (see `NewTokens`) of the rows are written after
// `first * K`. Returns their number, or -1 if states of a row don't exist.
NGPULM_EXPORT int64_t ngpulm_beam_step(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                       const NgpulmClasses* classes, const NgpulmBeamSettings* rules,
                                       const NgpulmBeamRows* rows, const NgpulmBeam* beam, const NgpulmSteps* steps,
                                       const float* logits, const int64_t* lines, int64_t* sources, int64_t* tokens,
                                       int64_t* targets) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    BeamStep step(lm, *classes, *rules, *rows, *beam, *steps, last - first);
    const int64_t num_beams = beam->num_beams, outputs = classes->tokens + classes->num_durations;
    NewTokens fresh;
    for (int64_t row = first; row < last; ++row) {
      if (!step.has_states(row)) return -1;
      step.run(
          row,
          [&](int64_t k) {
            const int64_t line = lines[row * num_beams + k];
            return line < 0 ? nullptr : logits + line * outputs;
          },
          fresh);
    }
    step.write_lines(fresh.hypotheses);
    std::copy(fresh.sources.begin(), fresh.sources.end(), sources + first * num_beams);
    std::copy(fresh.tokens.begin(), fresh.tokens.end(), tokens + first * num_beams);
    std::copy(fresh.targets.begin(), fresh.targets.end(), targets + first * num_beams);
    return fresh.size();
  });
}
