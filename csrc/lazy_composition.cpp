// Compose the states that searches have entered, by following the searches' paths again. Each function returns DONE, or the
// reason why there is no room. In the second case the caller makes room and calls it again, and the function continues where
// it stopped. BAD_STATE means that a state doesn't exist or has no predecessor.
#include "lazy_composition.hpp"

#include <thread>

using namespace ngpulm;

constexpr int64_t BAD_STATE = 3;

namespace ngpulm {
namespace {

// Only one thread at a time composes. Most states take microseconds.
class Turn {
 public:
  explicit Turn(int32_t* is_busy) : is_busy(is_busy) {
    while (__atomic_exchange_n(is_busy, 1, __ATOMIC_ACQUIRE)) std::this_thread::yield();
  }
  ~Turn() { __atomic_store_n(is_busy, 0, __ATOMIC_RELEASE); }
  Turn(const Turn&) = delete;

 private:
  int32_t* const is_busy;
};

template <class WordToken, class Token>
class ComposerOf : public Composer {
 public:
  explicit ComposerOf(const NgpulmComposing& c)
      : lazy(*c.made, Automaton<WordToken>(*c.lm), *c.words, *c.trie), is_busy(c.is_busy) {}

  bool finish(int32_t state) override {
    if (!lazy.is_unfinished(state)) return true;
    const Turn turn(is_busy);
    return lazy.enter(state, 0) == DONE;
  }

 private:
  LazyAutomaton<WordToken, Token> lazy;
  int32_t* const is_busy;
};

}  // namespace

std::unique_ptr<Composer> make_composer(const NgpulmComposing& composing) {
  const bool short_words = composing.lm->token_bytes == 2, short_tokens = composing.made->token_bytes == 2;
  if (short_words && short_tokens) return std::make_unique<ComposerOf<int16_t, int16_t>>(composing);
  if (short_words) return std::make_unique<ComposerOf<int16_t, int32_t>>(composing);
  if (short_tokens) return std::make_unique<ComposerOf<int32_t, int16_t>>(composing);
  return std::make_unique<ComposerOf<int32_t, int32_t>>(composing);
}

}  // namespace ngpulm

// Compose some states; states below 0 belong to other automata. `made` becomes 1 if any state was composed.
NGPULM_EXPORT int64_t ngpulm_lazy_enter(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                        const NgpulmSpellingTrie* trie, const int32_t* states, int64_t num_states,
                                        uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    for (int64_t i = 0; i < num_states; ++i) {
      if (states[i] < 0) continue;
      if (!lazy.has(states[i])) return BAD_STATE;
      if (!lazy.is_unfinished(states[i])) continue;
      *is_new = 1;
      if (const int64_t why = lazy.enter(states[i], 0); why != DONE) return why;
    }
    return DONE;
  });
}

// Compose the states that a search has entered, and states `ahead` of them. `now` [rows, beams] are the states before step
// `next_step` [rows] of each row. Before step -1 they are the initial states of the hypotheses; below 0 means no hypothesis.
// `links` and `labels` [rows, steps, beams] are each hypothesis's parent and new token at a step. A label below 0, or
// `not_tokens`, means no token.
NGPULM_EXPORT int64_t ngpulm_lazy_replay(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                         const NgpulmSpellingTrie* trie, int32_t* now, int64_t* next_step, const int32_t* links,
                                         const int32_t* labels, int64_t rows, int64_t steps, int64_t beams, int32_t not_tokens,
                                         int64_t ahead, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays don't move
    std::vector<int32_t> then(beams);
    for (int64_t row = 0; row < rows; ++row, now += beams, ++next_step) {
      for (; *next_step < steps; ++*next_step) {
        const int64_t at = (row * steps + *next_step) * beams;
        for (int64_t k = 0; k < beams; ++k) {
          const int64_t from = *next_step < 0 ? k : links[at + k];
          if (from < 0 || from >= beams) return BAD_STATE;
          then[k] = now[from];
          if (then[k] < 0) continue;
          if (!lazy.has(then[k])) return BAD_STATE;
          if (*next_step >= 0) {
            const int32_t label = labels[at + k];
            if (label < 0 || label == not_tokens) continue;
            then[k] = automaton.step(then[k], label).state;
          }
          if (!lazy.is_unfinished(then[k])) continue;
          *is_new = 1;
          if (const int64_t why = lazy.enter(then[k], ahead); why != DONE) return why;
        }
        std::copy(then.begin(), then.end(), now);
      }
    }
    return DONE;
  });
}

// Compose the states along texts, from the states in which `states_after` begins. `now` [rows] are the states before token
// `position` [rows] of each text, below 0 for none. A position below 0 means that the text hasn't been read yet: `now` is
// then the state at the beginning of texts, and `roots` the state to use if the beginning is out of reach of the context.
NGPULM_EXPORT int64_t ngpulm_lazy_read(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                       const NgpulmSpellingTrie* trie, int32_t* now, int64_t* position, const int32_t* roots,
                                       const int32_t* tokens, const int32_t* lengths, int64_t rows, int64_t length,
                                       int64_t context_length, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays don't move
    for (int64_t row = 0; row < rows; ++row, tokens += length) {
      int32_t& state = now[row];
      int64_t& at = position[row];
      if (state < 0) continue;
      if (at < 0) {
        int64_t seen = 0;
        for (at = lengths[row]; at > 0 && seen < context_length;) {
          --at;
          seen += tokens[at] >= 0 && tokens[at] < made->vocab_size;
        }
        if (seen == context_length) state = roots[row];
      }
      for (;; ++at) {
        if (!lazy.has(state)) return BAD_STATE;
        if (lazy.is_unfinished(state)) {
          *is_new = 1;
          if (const int64_t why = lazy.enter(state, 0); why != DONE) return why;
        }
        if (at >= lengths[row]) break;
        state = automaton.step(state, tokens[at]).state;
      }
    }
    return DONE;
  });
}
