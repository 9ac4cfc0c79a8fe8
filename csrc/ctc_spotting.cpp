// Find phrases that could replace words of a CTC transcript, and score token sequences. hf_ngpulm/search/ctc_spotting is the
// definition.
#include "frames.hpp"

// See hf_ngpulm/search/ctc_spotting/cpu.py.
struct NgpulmSpellingTree {
  const int32_t *firsts, *tokens, *ends;
  const float *bounds, *needed;
  const uint8_t* begins;
  int64_t num_nodes, delimiter;
  float slack;
};

// `tokens` holds three arrays of `size` numbers each: the tokens of all rows, their first frames, and the frames after their
// last frames. The tokens of row i are `offsets[i] .. offsets[i + 1] - 1`.
struct NgpulmTranscripts {
  const int64_t* offsets;
  const int32_t* tokens;
  int64_t size;
};

struct NgpulmSpots {
  int32_t* places;
  float* scores;
  int32_t* counts;
  int64_t most;
};

using namespace ngpulm;

namespace {

// An alignment of a partial spelling: its score minus that of the transcript's alignment, and its first frame.
struct Way {
  float score = NEG_INF;
  int32_t start = 0;

  void take(Way other, float more) {
    if (other.score + more > score) *this = {other.score + more, other.start};
  }
};

// A node of the tree with its best alignments that end in the node's token and in a blank.
struct Active {
  int32_t node;
  Way token, blank;
  const Way& best() const { return token.score >= blank.score ? token : blank; }
};

struct Spot {
  int32_t spelling, first, last, start, end;
  float score;
  bool is_same(const Spot& other) const {
    return spelling == other.spelling && first == other.first && last == other.last;
  }
};

class Spotter {
 public:
  Spotter(const NgpulmFrames& frames, const NgpulmSpellingTree& tree)
      : frames(frames), tree(tree), of_root(frames.classes), least_of_root(frames.classes, INFINITY) {
    for (int32_t node = tree.firsts[0]; node < tree.firsts[1]; ++node)
      of_root[tree.tokens[node]] = node, least_of_root[tree.tokens[node]] = tree.bounds[node];
  }

  // Find the spots of row `i`. Returns false if the transcript has a token or a frame that doesn't exist.
  bool run(int64_t i, const NgpulmTranscripts& of, const NgpulmSpots& spots) {
    const int64_t length = frames.lengths[i];
    const int32_t* tokens = of.tokens + of.offsets[i];
    if (!follow(tokens, tokens + of.size, tokens + 2 * of.size, of.offsets[i + 1] - of.offsets[i], length)) return false;
    active.clear(), found.clear();
    for (int64_t t = 0; t < length; ++t) step(frames.logits + (frames.starts[i] + t) * frames.classes, int32_t(t));
    write(i, spots);
    return true;
  }

 private:
  const NgpulmFrames& frames;
  const NgpulmSpellingTree& tree;
  std::vector<int32_t> of_root;             // by token: its node under the root
  std::vector<float> least_of_root;         // by token: the lowest score of a spelling that begins with it
  std::vector<int32_t> path, begun;         // the transcript's class at each frame; how many tokens begin before each frame
  std::vector<uint8_t> can_start, can_end;  // whether a phrase can start or end before a frame
  std::vector<Active> active, entering, next;
  std::vector<Spot> found;

  bool follow(const int32_t* tokens, const int32_t* starts, const int32_t* ends, int64_t size, int64_t length) {
    path.assign(length, frames.blank);
    begun.assign(length + 1, 0), can_start.assign(length + 1, 1), can_end.assign(length + 1, 1);
    int64_t now = 0;
    for (int64_t u = 0; u < size; ++u) {
      if (tokens[u] < 0 || tokens[u] >= frames.classes || starts[u] < now || ends[u] <= starts[u] || ends[u] > length)
        return false;
      std::fill(&path[starts[u]], &path[starts[u]] + (ends[u] - starts[u]), tokens[u]);
      const bool ends_word = u == 0 || tree.begins[tokens[u]];
      const bool starts_word = tree.delimiter < 0 ? ends_word : u == 0 || tokens[u - 1] == tree.delimiter;
      for (int64_t t = now; t <= starts[u]; ++t) begun[t] = int32_t(u), can_start[t] = starts_word, can_end[t] = ends_word;
      for (int64_t t = starts[u] + 1; t < ends[u]; ++t) begun[t] = int32_t(u + 1), can_start[t] = can_end[t] = 0;
      now = ends[u];
    }
    const bool starts_word = tree.delimiter < 0 || size == 0 || tokens[size - 1] == tree.delimiter;
    for (int64_t t = now; t <= length; ++t) begun[t] = int32_t(size), can_start[t] = starts_word;
    return true;
  }

  void step(const float* x, int32_t t) {
    if (active.empty() && !can_start[t]) return;
    const float of_path = x[path[t]];
    // `active` is in ascending order of nodes. Nodes are numbered breadth first, so `entering` is, too.
    entering.clear();
    if (can_start[t])
      each_above(x, of_path, [&](int32_t c) { entering.push_back({of_root[c], {x[c] - of_path, t}, {}}); });
    for (const Active& each : active) {
      const int32_t of_node = tree.tokens[each.node];
      for (int32_t child = tree.firsts[each.node]; child < tree.firsts[each.node + 1]; ++child) {
        const int32_t token = tree.tokens[child];
        const Way& from = token == of_node ? each.blank : each.best();
        const float score = from.score + (x[token] - of_path);
        if (score >= tree.bounds[child]) entering.push_back({child, {score, from.start}, {}});
      }
    }
    next.clear();
    size_t at = 0;
    for (const Active& each : active) {
      for (; at < entering.size() && entering[at].node < each.node; ++at) keep(entering[at], t);
      Active after{each.node, {}, {}};
      after.token.take(each.token, x[tree.tokens[each.node]] - of_path);
      after.blank.take(each.best(), x[frames.blank] - of_path);
      if (at < entering.size() && entering[at].node == each.node) after.token.take(entering[at++].token, 0.f);
      keep(after, t);
    }
    for (; at < entering.size(); ++at) keep(entering[at], t);
    active.swap(next);
  }

  void keep(const Active& each, int32_t t) {
    const Way& way = each.best();
    if (!(way.score > NEG_INF) || way.score < tree.bounds[each.node]) return;
    next.push_back(each);
    const int32_t spelling = tree.ends[each.node];
    if (spelling >= 0 && can_end[t + 1] && way.score >= tree.needed[spelling] - tree.slack)
      found.push_back({spelling, begun[way.start], begun[t + 1], way.start, t + 1, way.score});
  }

  // Call `take` for each class that begins a phrase with a score of at least the node's bound.
  template <class Take>
  void each_above(const float* x, float of_path, Take&& take) const {
    constexpr int64_t BLOCK = 4 * LANES;
    const float* bounds = least_of_root.data();
    for (int64_t c = 0; c < frames.classes; c += BLOCK) {
      const int64_t end = std::min(c + BLOCK, frames.classes);
      int32_t hits = 0;
      for (int64_t k = c; k < end; ++k) hits += x[k] - of_path >= bounds[k];
      for (int64_t k = c; hits && k < end; ++k)
        if (x[k] - of_path >= bounds[k]) take(int32_t(k));
    }
  }

  // Write the spots in descending order of score minus `needed`, each phrase once in the place of the same words.
  void write(int64_t i, const NgpulmSpots& spots) {
    const auto key = [](const Spot& s) { return std::make_pair(s.spelling, std::make_pair(s.first, s.last)); };
    std::sort(found.begin(), found.end(), [&](const Spot& a, const Spot& b) {
      return key(a) != key(b) ? key(a) < key(b) : a.score != b.score ? a.score > b.score : a.end < b.end;
    });
    found.erase(std::unique(found.begin(), found.end(), [](const Spot& a, const Spot& b) { return a.is_same(b); }),
                found.end());
    std::sort(found.begin(), found.end(), [&](const Spot& a, const Spot& b) {
      const float of_a = a.score - tree.needed[a.spelling], of_b = b.score - tree.needed[b.spelling];
      return of_a != of_b ? of_a > of_b : key(a) < key(b);
    });
    const int64_t count = std::min<int64_t>(found.size(), spots.most);
    spots.counts[i] = int32_t(count);
    for (int64_t n = 0; n < count; ++n) {
      const int32_t of[] = {found[n].spelling, found[n].first, found[n].last, found[n].start, found[n].end};
      std::copy_n(of, 5, spots.places + 5 * (i * spots.most + n));
      spots.scores[i * spots.most + n] = found[n].score;
    }
  }
};

}  // namespace

// Find the spots of each row. `places` [N, most, 5] gets the spelling, the first token, the token after the last, the first
// frame, and the frame after the last; `scores` is [N, most]. Returns -1, or the first row whose transcript has a token or a
// frame that doesn't exist.
NGPULM_EXPORT int64_t ngpulm_ctc_spot(int64_t first, int64_t last, const NgpulmFrames* frames, const NgpulmSpellingTree* tree,
                                      const NgpulmTranscripts* transcripts, const NgpulmSpots* spots) {
  Spotter spotter(*frames, *tree);
  for (int64_t i = first; i < last; ++i)
    if (!spotter.run(i, *transcripts, *spots)) return i;
  return -1;
}

// Write for each token sequence n the logsumexp of the scores of all its alignments to the frames of row `rows[n]`. Returns
// -1, or the first sequence with a token that doesn't exist.
NGPULM_EXPORT int64_t ngpulm_ctc_forced(int64_t first, int64_t last, const NgpulmFrames* frames, const int64_t* rows,
                                        const int64_t* offsets, const int32_t* tokens, double* scores) {
  std::vector<double> blanks, labels, entered, before;
  for (int64_t n = first; n < last; ++n) {
    const int64_t size = offsets[n + 1] - offsets[n];
    const int32_t* reading = tokens + offsets[n];
    for (int64_t u = 0; u < size; ++u)
      if (reading[u] < 0 || reading[u] >= frames->classes) return n;
    // Alignments of the first u tokens: blanks[u] for those that end in a blank, labels[u] for those that end in the last
    // token (Graves et al. 2006, section 4.1).
    blanks.assign(size + 1, NEG_INF_DOUBLE), labels = before = entered = blanks;
    blanks[0] = 0.0;
    for (int64_t t = 0; t < frames->lengths[rows[n]]; ++t) {
      const float* x = frames->logits + (frames->starts[rows[n]] + t) * frames->classes;
      add_all_logs(blanks.data(), labels.data(), size + 1, before.data());
      for (int64_t u = 1; u <= size; ++u)
        entered[u] = u > 1 && reading[u - 1] == reading[u - 2] ? blanks[u - 1] : before[u - 1];
      for (int64_t u = 0; u <= size; ++u) blanks[u] = before[u] + x[frames->blank];
      add_all_logs(labels.data(), entered.data(), size + 1, before.data());
      for (int64_t u = 1; u <= size; ++u) labels[u] = before[u] + x[reading[u - 1]];
    }
    scores[n] = add_logs(blanks[size], labels[size]);
  }
  return -1;
}
