// Token passing over the product of the CTC topology and backoff automata. hf_ngpulm/search/ctc_graph is the definition.
//
// At each frame, an open-addressing table by search state collects the candidates. So if two candidates meet in a state, they
// are compared immediately (Viterbi: the better one stays). Candidates that can't be among the best K are skipped. The upper
// bound of an extension is the hypothesis's score plus the frame's best token plus the highest score that any token adds in
// its state. Once there are 4 K candidates, all but the best K are dropped, and the lowest of these is the new bound.
//
// Most states of a phrase automaton have one or two arcs, and back off to the root for all other tokens. So the root's
// bonuses are added to the frame's logits once for all hypotheses, and the few arcs are followed one by one. Phrases then
// cost little more than the hypotheses that they add.
#include "frames.hpp"
#include "score_cache.hpp"

// See hf_ngpulm/search/ctc_graph/cpu.py.
struct NgpulmGraphState {
  double* scores;
  int32_t *last_tokens, *lm_states;
  double *fused, *lm_scores;
  int64_t max_active, num_automata;
};

struct NgpulmGraphRules {
  const float *weights, *bonuses;
  double threshold, skip;
};

using namespace ngpulm;

namespace {

struct Hypothesis {
  double score, fused, lm_score, phrase_score;
  int32_t state, phrase, last;
};

// The order of candidates with the same score.
bool is_before(const Hypothesis& a, const Hypothesis& b) {
  if (a.last != b.last) return a.last < b.last;
  return a.state != b.state ? a.state < b.state : a.phrase < b.phrase;
}

struct Candidate {
  double score;
  int32_t state, phrase, last;
  int32_t place, token;           // place of the hypothesis before, and the new token
  float extra, lm_score, earned;  // the token's total score; scores of the LM and the phrases
};

// The best candidate in each search state.
class Candidates {
 public:
  Candidates(int64_t max_active, const std::vector<Hypothesis>& active)
      : max_active(max_active), most(4 * max_active), active(active) {
    size_t size = 16;
    while (size < size_t(4 * most)) size *= 2;
    slots.resize(size);
    all.reserve(most);
    scores.reserve(most);
  }

  const std::vector<Candidate>& found() const { return all; }
  bool are_enough() const { return int64_t(all.size()) >= max_active; }
  bool are_all() const { return int64_t(all.size()) == most; }

  void clear() {
    all.clear();
    ++stamp;
  }

  // Add a candidate, or replace a worse candidate in the same search state. Returns false if the existing candidate is at
  // least as good.
  bool offer(const Candidate& candidate) {
    Slot& slot = slot_of(candidate);
    if (slot.stamp != stamp) {
      slot = {stamp, int32_t(all.size())};
      all.push_back(candidate);
      return true;
    }
    Candidate& other = all[slot.number];
    if (!is_better(candidate, other)) return false;
    other = candidate;
    return true;
  }

  // The score of the worst candidate that can be kept.
  double lowest_kept() {
    scores.clear();
    for (const Candidate& candidate : all) scores.push_back(candidate.score);
    std::nth_element(scores.begin(), scores.begin() + (max_active - 1), scores.end(), [](double a, double b) { return a > b; });
    return scores[max_active - 1];
  }

  // Keep the candidates with at least this score, at most `max_active` of them.
  void drop_below(double lowest) {
    all.erase(std::remove_if(all.begin(), all.end(), [=](const Candidate& c) { return c.score < lowest; }), all.end());
    if (int64_t(all.size()) <= max_active) return;  // otherwise several have the lowest score
    std::nth_element(all.begin(), all.begin() + max_active, all.end(),
                     [this](const Candidate& a, const Candidate& b) { return is_better(a, b); });
    all.resize(max_active);
  }

  // Rebuild the table of the remaining candidates.
  void enter_again() {
    ++stamp;
    for (size_t i = 0; i < all.size(); ++i) slot_of(all[i]) = {stamp, int32_t(i)};
  }

 private:
  struct Slot {
    int64_t stamp = 0;  // entries with an older stamp are empty
    int32_t number = 0;
  };

  const int64_t max_active, most;
  const std::vector<Hypothesis>& active;  // hypotheses before the frame
  int64_t stamp = 0;
  std::vector<Slot> slots;
  std::vector<Candidate> all;
  std::vector<double> scores;

  bool is_better(const Candidate& a, const Candidate& b) const {
    if (a.score != b.score) return a.score > b.score;
    return a.token != b.token ? a.token < b.token : is_before(active[a.place], active[b.place]);
  }

  // Return the slot of a search state, or an empty slot for it.
  Slot& slot_of(const Candidate& c) {
    const uint64_t key = (uint64_t(uint32_t(c.state)) << 32) | uint32_t(c.last + 1);
    const uint64_t mixed = (key ^ (uint64_t(c.phrase) * 0x9E3779B97F4A7u)) * 0x9E3779B97F4A7C15u;
    for (uint64_t at = mixed ^ (mixed >> 29) ^ (mixed >> 43);; ++at) {
      Slot& slot = slots[at & (slots.size() - 1)];
      if (slot.stamp != stamp) return slot;
      const Candidate& other = all[slot.number];
      if (other.state == c.state && other.last == c.last && other.phrase == c.phrase) return slot;
    }
  }
};

// Bonuses of tokens in a phrase automaton.
template <class Token>
class Phrases {
 public:
  Phrases(const Automaton<Token>& lm, int64_t classes)
      : scores(std::max<int64_t>(classes, lm.vocab_size)),
        targets(scores.size()),
        lifted(classes),
        lm(lm),
        candidates(std::min<int64_t>(classes, lm.vocab_size)),
        states(KEPT, -1),
        most(KEPT) {}

  int32_t root = -1;
  std::vector<float> scores;     // by token at the root; 0 for unscored classes
  std::vector<int32_t> targets;  // next states of these
  std::vector<float> lifted;     // logits plus the bonus of tokens that begin a phrase

  void use(int32_t state) {
    lm.finish(state);
    while (!lm.is_root(state)) state = lm.backoff_states[state];
    if (state == root) return;
    root = state;
    lm.scores(root, chain, scores.data(), targets.data());
  }

  // Return an upper bound, at least 0, of a token's score in a state beyond the score of backing off.
  float most_earned(int32_t state) {
    const int32_t place = state & (KEPT - 1);
    if (states[place] != state) most[place] = find_most(state);
    states[place] = state;
    return most[place];
  }

  // Compute the lifted logits of a frame. Returns the highest one.
  float lift(const float* logits, float weight, int32_t blank) {
    for (size_t token = 0; token < lifted.size(); ++token) lifted[token] = logits[token] + weight * scores[token];
    lifted[blank] = NEG_INF;
    return highest_of(lifted.data(), int64_t(lifted.size()));
  }

 private:
  static constexpr int32_t KEPT = 1024;

  const Automaton<Token>& lm;
  const int64_t candidates;
  std::vector<int32_t> states;  // by place: the state for which the bound is known
  std::vector<float> most;
  std::vector<int32_t> chain;

  float find_most(int32_t state) const {
    float found = 0.f, back = 0.f;
    lm.finish(state);
    for (;; state = lm.backoff_states[state]) {
      for (int32_t arc = lm.arc_offsets[state]; arc < lm.arc_offsets[state + 1]; ++arc)
        if (lm.arc_tokens[arc] < candidates) found = std::max(found, back + lm.arc_weights[arc]);
      back += lm.backoff_weights[state];
      found = std::max(found, back);
      if (lm.is_root(state)) return found;
    }
  }
};

template <class Token>
class GraphSearch {
 public:
  GraphSearch(const Automaton<Token>& lm, const NgpulmFrames& frames, const NgpulmGraphRules& rules,
              const NgpulmGraphState& state)
      : lm(lm),
        frames(frames),
        rules(rules),
        all(state),
        has_phrases(state.num_automata > 1),
        candidates(int32_t(std::min<int64_t>(lm.vocab_size, frames.classes))),
        has_unscored(frames.classes - candidates > (frames.blank >= candidates ? 1 : 0)),
        least_skipped(std::log(rules.skip)),
        cache(lm, 1, frames.classes, frames.blank, state.max_active),
        phrases(lm, frames.classes),
        met(state.max_active, active),
        marks(frames.classes),
        listed(frames.classes) {}

  // Search a row and update its state. The initial values of `links` and `labels` [T, K] are those of frames that change
  // nothing. Returns the first frame with NaN or infinity, or -1; -2 if states or tokens of the hypotheses don't exist.
  int32_t run(int64_t row, int32_t* links, int32_t* labels) {
    if (!begin(row)) return -2;
    int32_t number = 0;
    for (; number < frames.lengths[row]; ++number) {
      x = frame_of(frames, row, number);
      if (x.is_broken()) break;
      const double blank = double(x.logits[frames.blank]) - x.normaliser;
      const bool is_skipped = blank > least_skipped;
      stay(blank, is_skipped);
      if (!is_skipped) extend_all();
      if (best == NEG_INF_DOUBLE) continue;  // no candidate: sums with huge weights overflowed
      renew(links + number * all.max_active, labels + number * all.max_active);
    }
    end(row);
    return number < frames.lengths[row] ? number : -1;
  }

 private:
  const Automaton<Token>& lm;
  const NgpulmFrames& frames;
  const NgpulmGraphRules& rules;
  const NgpulmGraphState& all;
  const bool has_phrases;
  const int32_t candidates;  // classes that the automata score
  const bool has_unscored;   // whether there are unscored classes besides the blank
  const double least_skipped;
  ScoreCache<Token> cache;
  Phrases<Token> phrases;
  Candidates met;

  float phrase_weight = 0.f;
  std::vector<Hypothesis> active, next;
  size_t leader = 0;  // the best hypothesis
  Frame x{};
  double best = 0.0, worst = 0.0;  // `worst`: lowest score that can still be kept
  const float* sums = nullptr;     // logits, lifted if phrases are followed
  float highest_sum = 0.f;
  std::vector<int64_t> marks;  // by token: the last hypothesis whose phrase has an arc for it
  int64_t mark = 0;
  std::vector<int32_t> listed;

  bool begin(int64_t row) {
    cache.use(rules.weights + row * all.num_automata, rules.bonuses + row * frames.classes);
    phrase_weight = has_phrases ? rules.weights[row * all.num_automata + 1] : 0.f;
    active.clear();
    leader = 0;
    for (int64_t at = row * all.max_active; at < (row + 1) * all.max_active; ++at) {
      if (!(all.scores[at] > NEG_INF_DOUBLE)) continue;
      const int64_t of_lm = at * all.num_automata;
      Hypothesis h{all.scores[at], all.fused[at], all.lm_scores[of_lm], 0.0, all.lm_states[of_lm], 0, all.last_tokens[at]};
      if (has_phrases) h.phrase = all.lm_states[of_lm + 1], h.phrase_score = all.lm_scores[of_lm + 1];
      if (!lm.has(h.state) || !lm.has(h.phrase) || h.last < -1 || h.last >= frames.classes) return false;
      active.push_back(h);
      if (h.score > active[leader].score) leader = active.size() - 1;
    }
    if (has_phrases && !active.empty()) phrases.use(active[0].phrase);
    return true;
  }

  void end(int64_t row) {
    const int64_t first = row * all.max_active;
    std::fill_n(all.scores + first, all.max_active, NEG_INF_DOUBLE);
    for (size_t k = 0; k < active.size(); ++k) {
      const Hypothesis& h = active[k];
      const int64_t at = first + int64_t(k), of_lm = at * all.num_automata;
      all.scores[at] = h.score, all.fused[at] = h.fused, all.last_tokens[at] = h.last;
      all.lm_scores[of_lm] = h.lm_score, all.lm_states[of_lm] = h.state;
      if (has_phrases) all.lm_scores[of_lm + 1] = h.phrase_score, all.lm_states[of_lm + 1] = h.phrase;
    }
  }

  // Offer all hypotheses without a new token.
  void stay(double blank, bool is_skipped) {
    met.clear();
    best = NEG_INF_DOUBLE;
    for (size_t k = 0; k < active.size(); ++k) {
      const Hypothesis& h = active[k];
      Candidate candidate{h.score + blank, h.state, h.phrase, -1, int32_t(k), BLANK, 0.f, 0.f, 0.f};
      offer_staying(candidate);
      if (h.last < 0 || is_skipped) continue;
      candidate.score = h.score + (double(x.logits[h.last]) - x.normaliser);
      candidate.last = h.last, candidate.token = INSIDE;
      offer_staying(candidate);
    }
  }

  void offer_staying(const Candidate& candidate) {
    if (!(candidate.score > NEG_INF_DOUBLE)) return;
    met.offer(candidate);
    best = std::max(best, candidate.score);
  }

  // Offer new tokens. The best hypothesis comes first, because it raises the bound most.
  void extend_all() {
    worst = std::max(met.are_enough() ? met.lowest_kept() : std::numeric_limits<double>::lowest(), best - rules.threshold);
    sums = x.logits;
    highest_sum = x.highest;
    for (size_t turn = 0; turn < active.size(); ++turn) extend(int32_t(turn == 0 ? leader : turn > leader ? turn : turn - 1));
  }

  void extend(int32_t k) {
    const Hypothesis& h = active[k];
    const double base = h.score - x.normaliser;
    const int64_t line = cache.line_of(&h.state);
    const float* added = cache.added(line);
    const float most_added = cache.highest_of_line(line);
    if (has_phrases) {
      const float share = phrase_weight * phrases.most_earned(h.phrase);
      if (phrase_weight >= 0.f && !(base + x.highest + most_added + share + ROUNDING >= worst)) return;
      if (sums == x.logits) {
        highest_sum = phrases.lift(x.logits, phrase_weight, frames.blank);
        sums = phrases.lifted.data();
      }
    }
    const float back = has_phrases && h.phrase != phrases.root ? follow_phrases(k, base, added) : 0.f;
    float lower = phrase_weight * back;
    if (has_unscored) lower = std::max(lower, 0.f);  // unscored classes repay nothing
    if (!(base + highest_sum + most_added + lower + ROUNDING >= worst)) return;
    const float* lifted = sums;
    const auto count = list_where_above([=](int64_t token) { return lifted[token] + added[token]; },
                                        float(worst - base - lower - ROUNDING), frames.classes, listed.data());
    for (int64_t n = 0; n < count; ++n) {
      const int32_t token = listed[n];
      if (has_phrases && h.phrase != phrases.root && marks[token] == mark) continue;
      const bool begins = has_phrases && token < candidates;
      offer_token(k, base, token, added[token], begins ? phrases.targets[token] : h.phrase,
                  begins ? back + phrases.scores[token] : 0.f);
    }
  }

  // Follow the arcs of unfinished phrases. Returns the bonus that all other tokens repay.
  float follow_phrases(int32_t k, double base, const float* added) {
    ++mark;
    float back = 0.f;
    lm.finish(active[k].phrase);
    for (int32_t at = active[k].phrase; at != phrases.root && !lm.is_root(at); at = lm.backoff_states[at]) {
      for (int32_t arc = lm.arc_offsets[at]; arc < lm.arc_offsets[at + 1]; ++arc) {
        const int32_t token = lm.arc_tokens[arc];
        if (token >= candidates || marks[token] == mark) continue;
        marks[token] = mark;
        offer_token(k, base, token, added[token], lm.arc_targets[arc], back + lm.arc_weights[arc]);
      }
      back += lm.backoff_weights[at];
    }
    return back;
  }

  // Add a hypothesis with a new token to the candidates. If they are too many, keep the best.
  void offer_token(int32_t k, double base, int32_t token, float added, int32_t phrase, float earned) {
    const Hypothesis& h = active[k];
    const float extra = added + phrase_weight * earned;
    const double score = base + x.logits[token] + extra;
    if (!(score >= worst) || token == h.last) return;
    const Step step = token < candidates ? lm.step(h.state, token) : Step{0.f, h.state};
    if (!met.offer({score, step.state, phrase, token, k, token, extra, step.score, earned})) return;
    best = std::max(best, score);
    worst = std::max(worst, best - rules.threshold);
    if (!met.are_all()) return;
    worst = std::max(worst, met.lowest_kept());
    met.drop_below(worst);
    met.enter_again();
  }

  void renew(int32_t* links, int32_t* labels) {
    double lowest = best - rules.threshold;
    if (met.are_enough()) lowest = std::max(lowest, met.lowest_kept());
    met.drop_below(lowest);
    next.clear();
    leader = 0;
    for (const Candidate& c : met.found()) {
      const Hypothesis& from = active[c.place];
      links[next.size()] = c.place;
      labels[next.size()] = c.token;
      if (next.size() && c.score > next[leader].score) leader = next.size();
      next.push_back(
          {c.score, from.fused + c.extra, from.lm_score + c.lm_score, from.phrase_score + c.earned, c.state, c.phrase, c.last});
    }
    active.swap(next);
  }
};

}  // namespace

// Search more frames of some rows. `links` and `labels` are [B, width, max_active]. Returns -1, or the first row whose
// hypotheses have states or tokens that don't exist.
NGPULM_EXPORT int64_t ngpulm_ctc_graph(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                       const NgpulmFrames* frames, const NgpulmGraphRules* rules, const NgpulmGraphState* state,
                                       int32_t* links, int32_t* labels, int32_t* bad_frames, int64_t width) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    GraphSearch search(lm, *frames, *rules, *state);
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * width * state->max_active;
      const int32_t bad_frame = search.run(row, links + at, labels + at);
      if (bad_frame < -1) return row;
      bad_frames[row] = bad_frame;
    }
    return -1;
  });
}
