// A model of how long a program takes that is alone on a processor of an H100 (timing.py has the figures and their sources): a
// scoreboard of registers for each warp, issue slots and pipes of four schedulers, one port to L1, sectors in L1 and L2.
#pragma once
#include "machine.hpp"

namespace ptx {

constexpr int SCHEDULERS = 4, SECTOR = 32, LINE = 128;

struct Timed {  // what the model says of a warp
  double now = 0;      // when its last instruction was issued
  double operands = 0;  // when what its next one needs is there
  int64_t pipe = 0;     // of its next one
  bool runs = true;
  std::vector<double> ready;  // when each register is there
};

struct Clock {
  const Launch& launch;
  Timing& timing;
  double issue[SCHEDULERS], pipes[SCHEDULERS][NUM_PIPES], port, from_l2;  // when each is free
  std::vector<uint64_t> l1;    // the sector that each place holds
  std::vector<uint64_t> touched;  // sectors that the present instruction loads or stores
  std::vector<Timed> warps;

  explicit Clock(const Launch& launch) : launch(launch), timing(*launch.timing) {}
  void begin(const Program& program);
  void touch(const uint8_t* tensor, int64_t offset, int64_t size);
  void next(const Warp& warp);  // see what a warp does next
  Warp* first(Program& program);  // the warp that issues next; none if all wait
  void issued(const Warp& warp, const Instruction& in, bool runs, bool jumps);
  void pass_barrier(const Program& program);
  void end();

 private:
  double memory(const Instruction& in, double start);
};

}  // namespace ptx
