/* What the runtime and the driver say of a fake GPU alike. */
#pragma once

/* An attribute by the number that both give it; refuses one that no version asked for so far. */
int fake_attribute(int attribute, int gpu);

int fake_current_gpu(void);

/* The driver's function of a name, or one that refuses when it is called. */
void *fake_driver_function(const char *name);
