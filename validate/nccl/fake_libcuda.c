/* libcuda.so for NCCL up to 2.18, which opens it itself. It has what NCCL looks up there, from the
 * fake driver of the program.
 */
int fake_cuInit(unsigned flags);
int fake_cuDriverGetVersion(int *version);
void *fake_driver_function(const char *name);

int cuInit(unsigned flags) { return fake_cuInit(flags); }
int cuDriverGetVersion(int *version) { return fake_cuDriverGetVersion(version); }

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  *function = fake_driver_function(name);
  return 0;
}
