/* Asks a real libnccl.so.2 what it would do on a machine that is not here.
 *
 *   ask LIBRARY RANKS FIRST FOLDER [COLLECTIVE:BYTES]...
 *
 * One process is one node: its GPUs (fake_machine.h) are the ranks from FIRST on of RANKS. It ends
 * with the process that ASK_PARENT names, where that is set. Node 0 leaves the id of the
 * communicator in FOLDER, and all leave names of files to remove (made.N). NCCL's own log, with its
 * graphs and tables, is on stdout, and between its lines:
 *
 *   ASKED version 22707
 *   ASKED call all_reduce 1048576     bytes counted as nccl-tests does
 *   ASKED costs 12.3 -1.0 ...         of each algorithm and protocol in us, -1 for none (2.22)
 *   ASKED estimate 12.3               us (2.22)
 *   ASKED kernel NAME 24 640          blocks and threads that the first GPU would run
 *   ASKED end
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "fake_machine.h"
#include "interpose.h"

int fake_cudaSetDevice(int gpu);
int fake_cudaMalloc(void **first, size_t size);
int fake_cudaStreamCreate(void **stream);

enum { FLOAT = 7, SUM = 0, FLOAT_BYTES = 4, FIRST_WITH_SIMULATION = 22200 };
enum { PATIENCE_S = 1200 }; /* of the caller too (asking.py) */

/* ---- what is used of NCCL's public interface ---- */

struct id {
  char bytes[128];
};

struct simulation {
  size_t size;
  unsigned magic, version;
  float estimate;
};

static void *nccl;

static void *function(const char *name) {
  void *found = dlsym(nccl, name);
  if (!found) refuse(name);
  return found;
}

static void check(int result, const char *what) {
  if (!result) return;
  fflush(stdout);
  fprintf(stderr, "FAILED %s: error %d\n", what, result);
  fflush(stderr);
  _exit(4);
}

static void start_group(void) {
  check(((int (*)(void))function("ncclGroupStart"))(), "ncclGroupStart");
}
static void end_group(void) { check(((int (*)(void))function("ncclGroupEnd"))(), "ncclGroupEnd"); }

static float simulate_group(int version) {
  struct simulation found = {sizeof found, 0x74685283, version, -1};
  check(((int (*)(struct simulation *))function("ncclGroupSimulateEnd"))(&found),
        "ncclGroupSimulateEnd");
  return found.estimate;
}

/* ---- what is printed, by node 0 alone ---- */

static int is_first_node;

static void print(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void print(const char *format, ...) {
  if (!is_first_node) return;
  va_list values;
  va_start(values, format);
  flockfile(stdout);
  printf("ASKED ");
  vprintf(format, values);
  printf("\n");
  fflush(stdout);
  funlockfile(stdout);
  va_end(values);
}

void print_costs(const float *costs, int count) {
  char text[1024] = "";
  size_t length = 0;
  for (int i = 0; i < count && length < sizeof text - 32; i++)
    length += snprintf(text + length, sizeof text - length, " %.4f", costs[i]);
  print("costs%s", text);
}

void print_kernel(int gpu, const void *kernel, unsigned blocks, unsigned threads) {
  if (gpu == 0) print("kernel %s %u %u", name_of(kernel), blocks, threads);
}

/* NCCL's files in /dev/shm are made by this function, and stay where a run ends without its
 * communicators. So their names go to FOLDER, for the caller to remove.
 */
static FILE *made_files;

int mkstemp(char *template) {
  int file = mkostemp(template, 0);
  if (file >= 0 && made_files) {
    fprintf(made_files, "%s\n", template);
    fflush(made_files);
  }
  return file;
}

/* ---- calls ---- */

struct rank {
  void *communicator, *send, *receive, *stream;
};

static struct rank ranks[MOST_GPUS];

static int call(const char *collective, struct rank *rank, size_t part, size_t whole) {
  void *from = rank->send, *to = rank->receive, *with = rank->communicator, *on = rank->stream;
  typedef int (*reduction)(const void *, void *, size_t, int, int, void *, void *);
  typedef int (*gather)(const void *, void *, size_t, int, void *, void *);
  typedef int (*rooted)(const void *, void *, size_t, int, int, int, void *, void *);
  if (!strcmp(collective, "all_reduce"))
    return ((reduction)function("ncclAllReduce"))(from, to, whole, FLOAT, SUM, with, on);
  if (!strcmp(collective, "reduce_scatter"))
    return ((reduction)function("ncclReduceScatter"))(from, to, part, FLOAT, SUM, with, on);
  if (!strcmp(collective, "all_gather"))
    return ((gather)function("ncclAllGather"))(from, to, part, FLOAT, with, on);
  if (!strcmp(collective, "broadcast"))
    return ((reduction)function("ncclBroadcast"))(from, to, whole, FLOAT, 0, with, on);
  if (!strcmp(collective, "reduce"))
    return ((rooted)function("ncclReduce"))(from, to, whole, FLOAT, SUM, 0, with, on);
  refuse(collective);
}

static void call_all(const char *collective, size_t elements, int all) {
  for (int gpu = 0; gpu < fake_machine()->gpus; gpu++) {
    check(fake_cudaSetDevice(gpu), "cudaSetDevice");
    check(call(collective, &ranks[gpu], elements / all, elements), collective);
  }
}

static void ask(const char *words, int all, int version) {
  char collective[32];
  size_t bytes;
  if (sscanf(words, "%31[^:]:%zu", collective, &bytes) != 2) refuse(words);
  size_t elements = bytes / FLOAT_BYTES;
  print("call %s %zu", collective, bytes);
  if (version >= FIRST_WITH_SIMULATION) {
    start_group();
    call_all(collective, elements, all);
    print("estimate %.4f", simulate_group(version));
  }
  start_group();
  call_all(collective, elements, all);
  end_group();
}

/* ---- the communicator ---- */

static void write_whole(const char *path, const void *bytes, size_t size) {
  char other[4096];
  snprintf(other, sizeof other, "%s.part", path);
  int file = open(other, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (file < 0 || write(file, bytes, size) != (ssize_t)size || close(file) || rename(other, path))
    refuse(path);
}

static void wait_for(const char *path, void *bytes, size_t size) {
  int file;
  time_t end = time(NULL) + PATIENCE_S;
  while ((file = open(path, O_RDONLY)) < 0) {
    if (time(NULL) > end) check(1, "waiting for another node");
    usleep(20000);
  }
  if (read(file, bytes, size) != (ssize_t)size || close(file)) refuse(path);
}

static void join(int all, int first, const char *folder) {
  char path[4096];
  struct id id;
  snprintf(path, sizeof path, "%s/id", folder);
  if (first == 0) {
    check(((int (*)(struct id *))function("ncclGetUniqueId"))(&id), "ncclGetUniqueId");
    write_whole(path, &id, sizeof id);
  } else {
    wait_for(path, &id, sizeof id);
  }
  start_group();
  for (int gpu = 0; gpu < fake_machine()->gpus; gpu++) {
    check(fake_cudaSetDevice(gpu), "cudaSetDevice");
    typedef int (*init)(void **, int, struct id, int);
    check(((init)function("ncclCommInitRank"))(&ranks[gpu].communicator, all, id, first + gpu),
          "ncclCommInitRank");
  }
  end_group();
}

/* Nodes leave together: one that is gone is a fault to the others. */
static void wait_for_all(int all, int first, const char *folder) {
  int gpus = fake_machine()->gpus;
  char path[4096], byte = 0;
  snprintf(path, sizeof path, "%s/done.%d", folder, first);
  write_whole(path, &byte, 1);
  for (int other = 0; other < all; other += gpus) {
    snprintf(path, sizeof path, "%s/done.%d", folder, other);
    wait_for(path, &byte, 1);
  }
}

static size_t most_bytes(int count, char **calls) {
  size_t most = FLOAT_BYTES;
  for (int i = 0; i < count; i++) {
    const char *colon = strchr(calls[i], ':');
    size_t bytes = colon ? strtoull(colon + 1, NULL, 10) : 0;
    if (bytes > most) most = bytes;
  }
  return most;
}

/* A parent that is killed cannot end its nodes. */
static void end_with_parent(void) {
  const char *parent = getenv("ASK_PARENT");
  if (!parent) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != atoi(parent)) _exit(5); /* it was killed before */
}

int main(int count, char **words) {
  end_with_parent();
  if (count < 5) {
    fprintf(stderr, "usage: ask LIBRARY RANKS FIRST FOLDER [COLLECTIVE:BYTES]...\n");
    return 2;
  }
  /* Where a driver is, NCCL would find some of the real machine. */
  if (dlopen("libcuda.so.1", RTLD_LAZY)) refuse("to run beside a real driver, libcuda.so.1");
  int all = atoi(words[2]), first = atoi(words[3]);
  const char *folder = words[4];
  is_first_node = first == 0;
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  char made[4096];
  snprintf(made, sizeof made, "%s/made.%d", folder, first);
  if (!(made_files = fopen(made, "w"))) refuse(made);

  nccl = load_nccl(words[1]);
  int version = 0;
  check(((int (*)(int *))function("ncclGetVersion"))(&version), "ncclGetVersion");
  print("version %d", version);
  join(all, first, folder);
  size_t most = most_bytes(count - 5, words + 5);
  for (int gpu = 0; gpu < fake_machine()->gpus; gpu++) {
    struct rank *rank = &ranks[gpu];
    check(fake_cudaSetDevice(gpu), "cudaSetDevice");
    check(fake_cudaMalloc(&rank->send, most), "cudaMalloc");
    check(fake_cudaMalloc(&rank->receive, most), "cudaMalloc");
    check(fake_cudaStreamCreate(&rank->stream), "cudaStreamCreate");
  }
  for (int i = 5; i < count; i++) ask(words[i], all, version);
  print("end");
  wait_for_all(all, first, folder);
  _exit(0);
}
