// What a kernel of PTX runs on: registers of warps, shared memory of programs, tensors; and what is remembered of accesses.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace ptx {

constexpr int LANES = 32;
constexpr uint32_t ALL = ~0u;
constexpr int64_t SHARED = 1024;    // where a program's shared memory begins
constexpr uint8_t POISON = 0xFB;    // what driver.py fills tensors with that nobody has written to
constexpr int SLOT = 40;            // a tensor's addresses begin in the middle of a slot of 2**40 bytes of its own

// What may be told of a launch, in the order of `KINDS` in driver.py.
enum Kind : int64_t {
  WRITE_READ, READ_WRITE, WRITE_WRITE,                    // races
  LOAD_OUTSIDE, STORE_OUTSIDE, MISALIGNED, UNINITIALISED,  // wrong accesses
  ABSENT_LANE, MIXED_BARRIERS, DEADLOCK, ENDLESS           // threads that miss each other
};

// Shared with Python: all members are 64 bits wide.
struct Instruction {
  int64_t operation, guard, negated, target;  // guard: a predicate's register, or -1; target: an instruction, of a branch
  int64_t base, offset;                       // an address: the register, or -1, and what is added
  int64_t width, count, data_width, is_signed;  // bytes of an access, how many, and of the registers that they are in
  int64_t is_asked;                           // of a barrier: the kernel asks for it, so that it orders global memory
  int64_t pipe, slots, busy, latency, results;  // for the model of time; results: how many of the registers it writes
  int64_t registers[6];                       // the result first; -1: nobody wants it
};
enum Pipe { ISSUE, INTEGER, FLOAT, DOUBLE, SPECIAL, MEMORY, NUM_PIPES };  // in the order of `PIPES` in timing.py
struct Timing {  // of programs that run one after the other; timing.py
  int64_t l2_latency, dram_latency, sectors_a_cycle, l1_sectors, l2_bits;
  uint64_t* l2;   // the sector that each of 1 << l2_bits places holds: it stays from launch to launch
  double* spent;  // cycles of a warp at each instruction
  int64_t programs, barriers, sectors, to_l2, from_dram, busy[NUM_PIPES];  // sectors: that instructions touch
  double cycles, longest;  // of all programs, and of the one that takes longest
};
struct Tensor { uint8_t* bytes; int64_t size, granule; };  // granule: the binary logarithm of what is told apart
struct Constant { int64_t index, width, value; };
struct Finding { int64_t kind, count, first_at, second_at, first_program, first_thread, program, thread, tensor, offset; };
struct Launch {
  const Instruction* code;
  int64_t num_instructions;
  const Constant* constants;
  int64_t num_constants, num_registers, threads, shared, shared_granule;
  const uint8_t* parameters;
  int64_t grid[3];
  const Tensor* tensors;
  int64_t num_tensors;
  int64_t seed, resident, limit;  // programs that run at the same time; instructions of warps
  Finding* findings;
  int64_t room, num_findings, instructions;
  Timing* timing;  // or none
};

// Registers that are there before a kernel begins, as program.py counts them.
enum Special { THREAD, PROGRAM_X, PROGRAM_Y, PROGRAM_Z, PROGRAMS_X, PROGRAMS_Y, PROGRAMS_Z, NUM_SPECIAL };

enum State : uint8_t { RUNS, AT_SYNC, AT_BARRIER };
struct Part {  // threads of a warp that are at the same place
  uint32_t lanes;
  int64_t at;
  State state;
};
struct Warp {
  int64_t number = 0;
  uint32_t alive = ALL;
  uint32_t epochs[2] = {};  // how often bar.warp.sync has ordered its lanes' accesses to global and to shared memory
  std::vector<Part> parts;
  std::vector<uint64_t> registers;  // LANES words each, of which the first bytes are used
  // The lanes of a register, or (of a predicate) a word of bits.
  template <class T> T* of(int64_t index) { return reinterpret_cast<T*>(registers.data() + index * LANES); }
  uint32_t& bits(int64_t index) { return *of<uint32_t>(index); }
};

// Who touched a place last: ordered before another access by a barrier of all in between, or if it is the same thread's.
struct Access {
  uint32_t program, epoch, warp_epoch;  // programs count from 1: 0 is nobody
  uint16_t thread, at;
};
// What a granule of memory remembers: its last write; of its readers the last one, one of another thread (of another warp, if
// there is one), and one of another program.
struct Cell { Access write, read, other, foreign; };

struct Program {
  uint32_t number = 0, epochs[2] = {};  // epochs: how often bar.sync has ordered global and shared memory
  int64_t x = 0, y = 0, z = 0, live = 0, waiting = 0;
  std::vector<Warp> warps;
  std::vector<uint8_t> shared;
  std::vector<Cell> cells;
};

struct Stop : std::runtime_error { using std::runtime_error::runtime_error; };

struct Clock;  // timing.hpp

struct Machine {
  Launch& launch;
  std::unique_ptr<Clock> clock;
  std::vector<Cell*> cells;  // of each tensor
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Finding> found;
  Program* program = nullptr;
  uint64_t random;
  bool converges;

  explicit Machine(Launch& launch);
  ~Machine();
  void run();
  uint32_t draw() { random ^= random << 13, random ^= random >> 7, random ^= random << 17; return uint32_t(random >> 16); }
  int64_t place(const Instruction& in) const { return &in - launch.code; }
  void tell(Kind kind, const Access& first, const Access& second, int64_t tensor, int64_t offset);
  Access access(const Warp& warp, const Instruction& in, int lane, bool shared = false) const {
    const uint16_t thread = uint16_t(warp.number * LANES + lane);
    return {program->number + 1, program->epochs[shared], warp.epochs[shared], thread, uint16_t(place(in))};
  }

 private:
  void begin(Program& program, uint32_t number);
  void run_part(Warp& warp, size_t number, int64_t budget);
  bool turn(Program& program);
  bool timed_turn(Program& program);
  bool pass_barrier(Program& program);
};

typedef void (*Run)(Machine&, Warp&, const Instruction&, uint32_t lanes);
enum Role : uint8_t { PLAIN, BRANCH, EXIT, SYNC, WARP_BARRIER, BARRIER };
struct Operation {
  const char* name;
  const char* operands;  // bytes of each, the result first; "p": a predicate
  Run run;
  Role role = PLAIN;
};
extern const Operation OPERATIONS[];
extern const int64_t NUM_OPERATIONS;

}  // namespace ptx
