/* The library has the CUDA runtime as local functions, `cudaMalloc` and so on, named in its symbol
 * table. The first bytes of each become a jump to `fake_cudaMalloc`, or to a function that refuses.
 */
#define _GNU_SOURCE
#include "interpose.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_machine.h"

enum { PAGE = 4096, JUMP = 12 };

static struct {
  const char *names;
  const Elf64_Sym *symbols;
  size_t count;
  uintptr_t base;
} library;

static int is_function(const Elf64_Sym *symbol) {
  return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_value;
}

const char *name_of(const void *function) {
  for (size_t i = 0; i < library.count; i++) {
    const Elf64_Sym *symbol = &library.symbols[i];
    if (is_function(symbol) && library.base + symbol->st_value == (uintptr_t)function)
      return library.names + symbol->st_name;
  }
  return "?";
}

/* Whether a name is one of an API: its prefix, and a capital letter behind it. */
static int is_of(const char *prefix, const char *name) {
  size_t length = strlen(prefix);
  return !strncmp(name, prefix, length) && name[length] >= 'A' && name[length] <= 'Z';
}

/* NCCL looks up NVML, and up to 2.18 the driver, by name. What it does not find counts as missing
 * on the machine, which a fake cannot know: so it finds all, and a call of what is not known ends
 * the run.
 */
void *dlsym(void *handle, const char *name) {
  static void *(*real)(void *, const char *);
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void *found = real(handle, name);
  return found || !(is_of("nvml", name) || is_of("cu", name)) ? found : refusal_of(name);
}

static void *fake_of(const char *name) {
  /* Functions with streams of each thread have names of their own. */
  static const char *const endings[] = {"_ptsz", "_ptds"};
  char own[160];
  snprintf(own, sizeof own, "fake_%s", name);
  size_t length = strlen(own);
  for (int i = 0; i < 2; i++)
    if (!strcmp(own + length - 5, endings[i])) own[length - 5] = 0;
  void *found = dlsym(RTLD_DEFAULT, own);
  return found ? found : refusal_of(name);
}

/* movabs $target, %rax; jmp *%rax */
static void put_jump(uintptr_t from, void *target) {
  unsigned char code[JUMP] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};
  memcpy(code + 2, &target, sizeof target);
  void *page = (void *)(from / PAGE * PAGE);
  if (mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC)) refuse("writing to code");
  memcpy((void *)from, code, sizeof code);
}

static void read_symbols(const char *path) {
  struct stat status;
  int file = open(path, O_RDONLY);
  if (file < 0 || fstat(file, &status)) refuse(path);
  const char *bytes = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  const Elf64_Ehdr *head = (const void *)bytes;
  const Elf64_Shdr *sections = (const void *)(bytes + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    library.names = bytes + sections[sections[i].sh_link].sh_offset;
    library.symbols = (const void *)(bytes + sections[i].sh_offset);
    library.count = sections[i].sh_size / sizeof(Elf64_Sym);
  }
}

void *load_nccl(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) refuse(dlerror());
  struct link_map *map;
  dlinfo(handle, RTLD_DI_LINKMAP, &map);
  library.base = map->l_addr;
  read_symbols(path);
  int replaced = 0;
  for (size_t i = 0; i < library.count; i++) {
    const Elf64_Sym *symbol = &library.symbols[i];
    const char *name = library.names + symbol->st_name;
    if (!is_function(symbol) || !is_of("cuda", name)) continue;
    /* A size of 0 says nothing; behind a shorter function, another one would be overwritten. */
    if (symbol->st_size && symbol->st_size < JUMP) refuse(name);
    put_jump(library.base + symbol->st_value, fake_of(name));
    replaced++;
  }
  if (!replaced) refuse("a library without a symbol table of its CUDA runtime");
  return handle;
}
