// An all-reduce on one switch in SimGrid's S4U: one actor for each rank, one message for each send.
//
//     simgrid ring|direct|halving_doubling RANKS BYTES
//
// Prints the simulated seconds. Links are those of simreduce's `switch:RANKS`: 25 GB/s and 0.5 us
// each way. Rates are max-min fair, without a model of TCP, as in simreduce.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;

static char token;

static void exchange(int to, int from, double bytes)
{
  sg4::CommPtr sent = sg4::Mailbox::by_name(std::to_string(to))->put_async(&token, bytes);
  sg4::Mailbox::by_name(std::to_string(from))->get<char>();
  sent->wait();
}

// Each step sends a chunk to the next rank.
static void ring(int rank, int ranks, double bytes)
{
  for (int step = 0; step < 2 * (ranks - 1); step++)
    exchange((rank + 1) % ranks, rank, bytes / ranks);
}

// Twice, every rank sends a chunk to each other at once.
static void direct(int rank, int ranks, double bytes)
{
  for (int phase = 0; phase < 2; phase++) {
    sg4::Mailbox* mine = sg4::Mailbox::by_name(std::to_string(rank) + (phase ? "b" : "a"));
    std::vector<sg4::CommPtr> all;
    std::vector<char*> got(ranks);
    for (int other = 1; other < ranks; other++) {
      int to = (rank + other) % ranks;
      std::string name = std::to_string(to) + (phase ? "b" : "a");
      all.push_back(sg4::Mailbox::by_name(name)->put_async(&token, bytes / ranks));
      all.push_back(mine->get_async<char>(&got[other]));
    }
    sg4::Comm::wait_all(all);
  }
}

// Halves are exchanged with partners ever farther away, then doubled on the way back.
static void halving_doubling(int rank, int ranks, double bytes)
{
  for (int far = ranks / 2, half = 2; far > 0; far /= 2, half *= 2)
    exchange(rank ^ far, rank, bytes / half);
  for (int far = 1, half = ranks; far < ranks; far *= 2, half /= 2)
    exchange(rank ^ far, rank, bytes / half);
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  if (argc != 4)
    return 2;
  std::string name = argv[1];
  int ranks = std::atoi(argv[2]);
  double bytes = std::atof(argv[3]);
  for (const char* option : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                             "contexts/stack-size:64"})
    sg4::Engine::set_config(option);
  auto run = name == "ring" ? ring : name == "direct" ? direct : halving_doubling;
  auto* zone = sg4::create_star_zone("switch");
  std::vector<sg4::Host*> hosts;
  for (int rank = 0; rank < ranks; rank++) {
    auto* host = zone->create_host("gpu" + std::to_string(rank), 1e9);
    auto* link = zone->create_split_duplex_link("link" + std::to_string(rank), 25e9);
    link->set_latency(0.5e-6)->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr,
                    {{link, sg4::LinkInRoute::Direction::UP}}, true);
    hosts.push_back(host);
  }
  zone->seal();
  for (int rank = 0; rank < ranks; rank++)
    sg4::Actor::create("rank" + std::to_string(rank), hosts[rank], run, rank, ranks, bytes);
  engine.run();
  std::printf("%.9f\n", sg4::Engine::get_clock());
}
