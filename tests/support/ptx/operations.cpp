// The instructions of PTX that the project's kernels use, each with what it does to the lanes of a warp. Others are refused by
// name when a kernel is read. (PTX ISA, chapter "Instruction Set".) Of loads and stores: machine.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "machine.hpp"

namespace ptx {
namespace {

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef float f32;
typedef double f64;

template <class... T> const char* sizes() {
  static const char text[] = {char('0' + sizeof(T))..., 0};
  return text;
}
template <class... T> const char* test_of() {
  static const char text[] = {'p', char('0' + sizeof(T))..., 0};
  return text;
}

// What registers hold goes in, and comes out of `f`, lane by lane. Registers are the same, or far from each other.
template <class D, class F, class... S> void map(D* out, uint32_t lanes, F f, const S*... from) {
  if (lanes == ALL) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; ++l) out[l] = f(from[l]...);
  } else {
    for (int l = 0; l < LANES; ++l)
      if (lanes >> l & 1) out[l] = f(from[l]...);
  }
}

template <class F, class... S> void test(Warp& w, const Instruction& in, uint32_t lanes, F f, const S*... from) {
  uint32_t bits = 0;
  for (int l = 0; l < LANES; ++l) bits |= uint32_t(f(from[l]...)) << l;
  uint32_t& out = w.bits(in.registers[0]);
  out = (out & ~lanes) | (bits & lanes);
}

template <class T> T smaller(T a, T b) {  // of a NaN and a number the number; -0 < 0
  return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
}
template <class T> T greater(T a, T b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : std::max(a, b); }
f32 flushed(f32 a) { return std::fabs(a) < 1.17549435e-38f ? std::copysign(0.f, a) : a; }
f32 of_half(u16 a) {
  _Float16 half;
  std::memcpy(&half, &a, 2);
  return f32(half);
}
f32 of_bfloat(u16 a) {
  const u32 bits = u32(a) << 16;
  f32 value;
  std::memcpy(&value, &bits, 4);
  return value;
}
template <class T> T bits_between(T a, u32 first, u32 count) {  // bfe; sign-extended where T is signed
  const u32 size = 8 * sizeof(T);
  first &= 255, count &= 255;
  if (!count || (first >= size && T(-1) > 0)) return 0;
  if (first >= size) return a < 0 ? -1 : 0;
  const u32 used = std::min(count, size - first), left = size - first - used;
  return T(T(std::make_unsigned_t<T>(a) << left) >> (left + first));
}

u32 permuted(u32 a, u32 b, u32 selector) {  // prmt: four of eight bytes, or their signs
  const u64 bytes = u64(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 which = selector >> 4 * i & 15, byte = u32(bytes >> 8 * (which & 7)) & 255;
    result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return result;
}

template <int MODE> void shuffle(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) {
  u32 from[LANES];
  std::memcpy(from, w.of<u32>(in.registers[1]), sizeof from);
  const u32 *by = w.of<u32>(in.registers[2]), *clamp = w.of<u32>(in.registers[3]);
  for (int l = 0; l < LANES; ++l) {
    if (!(lanes >> l & 1)) continue;
    const int b = by[l] & 31, bound = clamp[l] & 31, segment = clamp[l] >> 8 & 31;
    const int first = l & segment, last = first | (bound & ~segment);
    int other = MODE == 'u' ? l - b : MODE == 'b' ? l ^ b : first | (b & ~segment);
    if (MODE == 'u' ? other < last : other > last) other = l;
    if (!(lanes >> other & 1)) m.tell(ABSENT_LANE, m.access(w, in, other), m.access(w, in, l), -1, 0);
    w.of<u32>(in.registers[0])[l] = from[other];
  }
}

template <class T, class F> void reduce(Warp& w, const Instruction& in, uint32_t lanes, F f) {
  const T* from = w.of<T>(in.registers[1]);
  T result = from[__builtin_ctz(lanes)];
  for (u32 left = lanes & (lanes - 1); left; left &= left - 1) result = f(result, from[__builtin_ctz(left)]);
  map(w.of<T>(in.registers[0]), lanes, [=](T) { return result; }, from);
}

template <class T, class H> void pack(Warp& w, const Instruction& in, uint32_t lanes) {
  map(w.of<T>(in.registers[0]), lanes, [](H a, H b) { return T(a) | T(b) << 8 * sizeof(H); }, w.of<H>(in.registers[1]),
      w.of<H>(in.registers[2]));
}
template <class T, class H> void unpack(Warp& w, const Instruction& in, uint32_t lanes) {
  T from[LANES];
  std::memcpy(from, w.of<T>(in.registers[2]), sizeof from);
  for (int part = 0; part < 2; ++part)
    if (in.registers[part] >= 0)
      map(w.of<H>(in.registers[part]), lanes, [=](T a) { return H(a >> 8 * sizeof(H) * part); }, from);
}

#define RUN [](Machine & m, Warp & w, const Instruction& in, uint32_t lanes)
#define R(T, i) w.of<T>(in.registers[i])
#define UNARY(NAME, D, A, E) {NAME, sizes<D, A>(), RUN { (void)m, map(R(D, 0), lanes, [](A a) { return D(E); }, R(A, 1)); }}
#define BINARY(NAME, T, E) MIXED(NAME, T, T, T, E)
#define MIXED(NAME, D, A, B, E) \
  {NAME, sizes<D, A, B>(), RUN { (void)m, map(R(D, 0), lanes, [](A a, B b) { return D(E); }, R(A, 1), R(B, 2)); }}
#define TERNARY(NAME, D, A, B, C, E)                                                                             \
  {NAME, sizes<D, A, B, C>(), RUN {                                                                              \
     (void)m, map(R(D, 0), lanes, [](A a, B b, C c) { return D(E); }, R(A, 1), R(B, 2), R(C, 3));                \
   }}
#define TEST(NAME, T, E) \
  {NAME, test_of<T, T>(), RUN { (void)m, test(w, in, lanes, [](T a, T b) { return E; }, R(T, 1), R(T, 2)); }}
#define ORDERS(SUFFIX, T)                                                                                   \
  TEST("setp.lt." SUFFIX, T, a < b), TEST("setp.le." SUFFIX, T, a <= b), TEST("setp.gt." SUFFIX, T, a > b), \
      TEST("setp.ge." SUFFIX, T, a >= b)
#define FLOATS(SUFFIX, T)  /* those with "u" hold where one is NaN */                                          \
  ORDERS(SUFFIX, T), TEST("setp.eq." SUFFIX, T, a == b), TEST("setp.ne." SUFFIX, T, (a < b) | (a > b)),        \
      TEST("setp.equ." SUFFIX, T, !((a < b) | (a > b))), TEST("setp.neu." SUFFIX, T, a != b),                  \
      TEST("setp.ltu." SUFFIX, T, !(a >= b)), TEST("setp.leu." SUFFIX, T, !(a > b)),                           \
      TEST("setp.gtu." SUFFIX, T, !(a <= b)), TEST("setp.geu." SUFFIX, T, !(a < b)),                           \
      TEST("setp.nan." SUFFIX, T, (a != a) | (b != b)), TEST("setp.num." SUFFIX, T, (a == a) & (b == b))
#define ARITHMETIC(SUFFIX, T)                                                                                        \
  BINARY("add." SUFFIX, T, a + b), BINARY("sub." SUFFIX, T, a - b), BINARY("mul." SUFFIX, T, a* b),                  \
      BINARY("min." SUFFIX, T, smaller(a, b)), BINARY("max." SUFFIX, T, greater(a, b)),                              \
      UNARY("abs." SUFFIX, T, T, std::fabs(a)), UNARY("neg." SUFFIX, T, T, -a),                                      \
      TERNARY("fma.rn." SUFFIX, T, T, T, T, std::fma(a, b, c)), BINARY("div.rn." SUFFIX, T, a / b)
#define INTEGERS(SUFFIX, S, U)                                                                            \
  BINARY("add." SUFFIX, U, a + b), BINARY("sub." SUFFIX, U, a - b), BINARY("mul.lo." SUFFIX, U, u64(a) * b),   \
      TERNARY("mad.lo." SUFFIX, U, U, U, U, u64(a) * b + c), UNARY("neg." SUFFIX, U, U, U(0) - a),             \
      BINARY("min." SUFFIX, S, std::min(a, b)), BINARY("max." SUFFIX, S, std::max(a, b)),                 \
      TEST("setp.eq." SUFFIX, U, a == b), TEST("setp.ne." SUFFIX, U, a != b)
#define HALVES(SUFFIX, OF)                                                                                 \
  TEST("setp.lt." SUFFIX, u16, OF(a) < OF(b)), TEST("setp.le." SUFFIX, u16, OF(a) <= OF(b)),               \
      TEST("setp.gt." SUFFIX, u16, OF(a) > OF(b)), TEST("setp.ge." SUFFIX, u16, OF(a) >= OF(b))
#define BITS(SUFFIX, T)                                                                                            \
  BINARY("and." SUFFIX, T, a & b), BINARY("or." SUFFIX, T, a | b), BINARY("xor." SUFFIX, T, a ^ b),                \
      UNARY("not." SUFFIX, T, T, ~a), TEST("setp.eq." SUFFIX, T, a == b), TEST("setp.ne." SUFFIX, T, a != b),      \
      UNARY("mov." SUFFIX, T, T, a), MIXED("shl." SUFFIX, T, T, u32, b < 8 * sizeof(T) ? u64(a) << b : 0)
#define SHIFT(NAME, T) MIXED(NAME, T, T, u32, a >> std::min<u32>(b, 8 * sizeof(T) - 1))
#define CHOICE(NAME, OPERANDS, T)                                                                             \
  {NAME, OPERANDS, RUN {                                                                                      \
     (void)m;                                                                                                 \
     const u32 bits = w.bits(in.registers[3]);                                                                \
     const T *a = R(T, 1), *b = R(T, 2);                                                                      \
     T* out = R(T, 0);                                                                                        \
     for (int l = 0; l < LANES; ++l) out[l] = lanes >> l & 1 ? (bits >> l & 1 ? a[l] : b[l]) : out[l];        \
   }}
#define PREDICATE(NAME, OPERANDS, E)                                                     \
  {NAME, OPERANDS, RUN {                                                                 \
     (void)m;                                                                            \
     const u32 a = w.bits(in.registers[1]), b = w.bits(std::max<int64_t>(in.registers[2], 0)); \
     u32& out = w.bits(in.registers[0]);                                                 \
     (void)b, out = (out & ~lanes) | ((E) & lanes);                                      \
   }}
#define REDUCTION(NAME, T, E) {NAME, "444", RUN { (void)m, reduce<T>(w, in, lanes, [](T a, T b) { return T(E); }); }, SYNC}
#define PARTS(NAME, OPERANDS, FUNCTION) {NAME, OPERANDS, RUN { (void)m, FUNCTION(w, in, lanes); }}

}  // namespace

void load_global(Machine&, Warp&, const Instruction&, uint32_t);
void store_global(Machine&, Warp&, const Instruction&, uint32_t);
void load_shared(Machine&, Warp&, const Instruction&, uint32_t);
void store_shared(Machine&, Warp&, const Instruction&, uint32_t);
void load_parameter(Machine&, Warp&, const Instruction&, uint32_t);
void load_matrix(Machine&, Warp&, const Instruction&, uint32_t);
void store_matrix(Machine&, Warp&, const Instruction&, uint32_t);

// Operands "": program.py knows them.
const Operation OPERATIONS[] = {
    {"bra", "", nullptr, BRANCH},
    {"ret", "", nullptr, EXIT},
    {"bar.sync", "", nullptr, BARRIER},
    {"bar.warp.sync", "", nullptr, WARP_BARRIER},
    {"ld.global", "", load_global},
    {"st.global", "", store_global},
    {"ld.shared", "", load_shared},
    {"st.shared", "", store_shared},
    {"ld.param", "", load_parameter},
    {"ldmatrix", "", load_matrix, SYNC},
    {"stmatrix", "", store_matrix, SYNC},
    {"shfl.sync.up.b32", "44444", shuffle<'u'>, SYNC},
    {"shfl.sync.bfly.b32", "44444", shuffle<'b'>, SYNC},
    {"shfl.sync.idx.b32", "44444", shuffle<'i'>, SYNC},
    REDUCTION("redux.sync.add.s32", u32, a + b),
    REDUCTION("redux.sync.min.s32", s32, std::min(a, b)),
    REDUCTION("redux.sync.max.s32", s32, std::max(a, b)),
    REDUCTION("redux.sync.min.u32", u32, std::min(a, b)),
    REDUCTION("redux.sync.max.u32", u32, std::max(a, b)),
    INTEGERS("s16", s16, u16), INTEGERS("s32", s32, u32), INTEGERS("s64", s64, u64),
    BINARY("min.u32", u32, std::min(a, b)), BINARY("max.u32", u32, std::max(a, b)),
    MIXED("mul.wide.s16", s32, s16, s16, s32(a) * b), MIXED("mul.wide.u16", u32, u16, u16, u32(a) * b),
    MIXED("mul.wide.s32", s64, s32, s32, s64(a) * b), MIXED("mul.wide.u32", u64, u32, u32, u64(a) * b),
    TERNARY("mad.wide.s32", s64, s32, s32, s64, u64(s64(a) * b) + u64(c)),
    TERNARY("mad.wide.u32", u64, u32, u32, u64, u64(a) * b + c),
    BINARY("div.s32", s32, b == 0 ? -1 : s64(a) / b),
    TERNARY("bfe.u64", u64, u64, u32, u32, bits_between<u64>(a, b, c)),
    TERNARY("bfe.u32", u32, u32, u32, u32, bits_between<u32>(a, b, c)),
    TERNARY("bfe.s32", s32, s32, u32, u32, bits_between<s32>(a, b, c)),
    TERNARY("prmt.b32", u32, u32, u32, u32, permuted(a, b, c)),
    BITS("b16", u16), BITS("b32", u32), BITS("b64", u64),
    UNARY("mov.u16", u16, u16, a), UNARY("mov.u32", u32, u32, a), UNARY("mov.u64", u64, u64, a),
    MIXED("shr.u16", u16, u16, u32, b < 16 ? a >> b : 0), MIXED("shr.u32", u32, u32, u32, b < 32 ? a >> b : 0),
    MIXED("shr.u64", u64, u64, u32, b < 64 ? a >> b : 0),
    SHIFT("shr.s16", s16), SHIFT("shr.s32", s32), SHIFT("shr.s64", s64),
    CHOICE("selp.b16", "222p", u16), CHOICE("selp.b32", "444p", u32), CHOICE("selp.b64", "888p", u64),
    CHOICE("selp.f32", "444p", u32), CHOICE("selp.f64", "888p", u64),
    PREDICATE("mov.pred", "pp", a), PREDICATE("not.pred", "pp", ~a), PREDICATE("and.pred", "ppp", a & b),
    PREDICATE("or.pred", "ppp", a | b), PREDICATE("xor.pred", "ppp", a ^ b),
    ORDERS("s16", s16), ORDERS("s32", s32), ORDERS("s64", s64), ORDERS("u32", u32), ORDERS("u64", u64),
    HALVES("f16", of_half), HALVES("bf16", of_bfloat),
    FLOATS("f32", f32), FLOATS("f64", f64), ARITHMETIC("f32", f32), ARITHMETIC("f64", f64),
    // Approximations are those of the C++ library, and flush nothing to 0 unless they say so.
    BINARY("div.approx.f32", f32, a / b), BINARY("div.full.f32", f32, a / b),
    UNARY("ex2.approx.f32", f32, f32, std::exp2(a)),
    TERNARY("fma.rn.ftz.f32", f32, f32, f32, f32, flushed(std::fma(flushed(a), flushed(b), flushed(c)))),
    UNARY("cvt.u32.u64", u32, u64, a), UNARY("cvt.u64.u32", u64, u32, a), UNARY("cvt.s64.s32", s64, s32, a),
    UNARY("cvt.s64.s32", s64, u64, s32(a)), UNARY("cvt.u64.u32", u64, u64, u32(a)), UNARY("cvt.s32.s16", s32, u32, s16(a)),
    UNARY("popc.b32", u32, u32, __builtin_popcount(a)), UNARY("cvt.u16.u32", u16, u32, a), UNARY("cvt.u16.u64", u16, u64, a),
    UNARY("cvt.u32.u16", u32, u16, a),
    UNARY("cvt.s32.s16", s32, s16, a), UNARY("cvt.s64.s16", s64, s16, a),
    UNARY("cvt.f32.f16", f32, u16, of_half(a)), UNARY("cvt.f32.bf16", f32, u16, of_bfloat(a)),
    UNARY("cvt.f64.f32", f64, f32, a), UNARY("cvt.rn.f32.f64", f32, f64, a),
    UNARY("cvt.rn.f32.s32", f32, s32, a),
    PARTS("pack.b32", "422", (pack<u32, u16>)), PARTS("pack.b64", "844", (pack<u64, u32>)),
    PARTS("unpack.b32", "224", (unpack<u32, u16>)), PARTS("unpack.b64", "448", (unpack<u64, u32>)),
};
const int64_t NUM_OPERATIONS = sizeof OPERATIONS / sizeof *OPERATIONS;

}  // namespace ptx
