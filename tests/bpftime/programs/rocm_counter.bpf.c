/* 20, the shape of rocm-counter: names without cuda__, compiled and verified only. */
#define NAME(name) name
#include "counter.bpf.c"
