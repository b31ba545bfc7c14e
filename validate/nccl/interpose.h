/* Puts the fake runtime in the place of the CUDA runtime that libnccl.so.2 carries, in memory. */
#pragma once

/* Loads the library of a path and replaces every entry point of the runtime in it; ends the run if
 * there is none.
 */
void *load_nccl(const char *path);

/* The name of a function of the library, "?" for any other. */
const char *name_of(const void *function);
