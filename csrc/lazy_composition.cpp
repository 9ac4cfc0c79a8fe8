// Composing what searches have entered, found by going their ways once more. Each returns DONE, or why there is no room: then
// it is called again when there is more, and goes on where it has stopped. BAD_STATE says that one doesn't exist, or comes from
// nowhere.
#include "lazy_composition.hpp"

#include <optional>
#include <stdexcept>
#include <thread>

using namespace ngpulm;

constexpr int64_t BAD_STATE = 3;

namespace ngpulm {
namespace {

// One thread at a time composes. Most states take microseconds.
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
  ComposerOf(const NgpulmComposing& composing, std::function<void()> load) : c(composing), load(std::move(load)) {
    const Turn turn(c.is_busy);
    renew();
  }

  void finish(int32_t state) override {
    if (!__atomic_load_n(unfinished + state, __ATOMIC_ACQUIRE)) return;
    const Turn turn(c.is_busy);
    renew();
    if (!unfinished[state] || (lazy && lazy->enter(state, 0) == DONE)) return;
    if (reinterpret_cast<int64_t (*)(int64_t)>(c.finish)(state) != 0) throw std::runtime_error("a state can't be composed");
    renew();
  }

 private:
  // Read the addresses of the arrays, which another thread may have replaced.
  void renew() {
    if (c.unfinished == unfinished && c.made == made) return;
    unfinished = c.unfinished, made = c.made;
    if (made) lazy.emplace(*made, Automaton<WordToken>(*c.lm), *c.words, *c.trie);
    load();
  }

  const NgpulmComposing& c;
  const std::function<void()> load;
  const uint8_t* unfinished = nullptr;
  const NgpulmLazyAutomaton* made = nullptr;
  std::optional<LazyAutomaton<WordToken, Token>> lazy;  // none if the search reads copies of the states
};

}  // namespace

std::unique_ptr<Composer> make_composer(const NgpulmComposing& composing, std::function<void()> load) {
  const bool short_words = composing.lm && composing.lm->token_bytes == 2;
  const bool short_tokens = composing.made && composing.made->token_bytes == 2;
  if (short_words && short_tokens) return std::make_unique<ComposerOf<int16_t, int16_t>>(composing, load);
  if (short_words) return std::make_unique<ComposerOf<int16_t, int32_t>>(composing, load);
  if (short_tokens) return std::make_unique<ComposerOf<int32_t, int16_t>>(composing, load);
  return std::make_unique<ComposerOf<int32_t, int32_t>>(composing, load);
}

}  // namespace ngpulm

// Say that the scores of some states in a pool are final. Who sees that in another thread sees their arcs.
NGPULM_EXPORT int64_t ngpulm_lazy_finished(int64_t count, const int32_t* states, uint8_t* unfinished) {
  for (int64_t i = 0; i < count; ++i) __atomic_store_n(unfinished + states[i], uint8_t(0), __ATOMIC_RELEASE);
  return DONE;
}

// Compose some states; those below 0 are of other automata. `made` becomes 1 if there was anything to compose.
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

// Compose what a search has entered, and `ahead` of it. `now` [rows, beams] are the states before step `next_step` [rows] of
// each row, before step -1 those in which its hypotheses began, below 0 for none. `links` and `labels` [rows, steps, beams] are
// the hypothesis that each comes from at a step, and the token that it gets; none if below 0 or `not_tokens`.
NGPULM_EXPORT int64_t ngpulm_lazy_replay(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                         const NgpulmSpellingTrie* trie, int32_t* now, int64_t* next_step, const int32_t* links,
                                         const int32_t* labels, int64_t rows, int64_t steps, int64_t beams, int32_t not_tokens,
                                         int64_t ahead, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays stay where they are
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

// Compose the states along texts, from where `states_after` begins to read them. `now` [rows] are the states before token
// `position` [rows] of each text, below 0 for none; a position below 0 is that of a text which hasn't been looked at, whose
// `now` is where texts begin, and its `roots` where they do if that lies too far back.
NGPULM_EXPORT int64_t ngpulm_lazy_read(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                       const NgpulmSpellingTrie* trie, int32_t* now, int64_t* position, const int32_t* roots,
                                       const int32_t* tokens, const int32_t* lengths, int64_t rows, int64_t length,
                                       int64_t context_length, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays stay where they are
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
