/* Ours: two lines of which the compiler makes one call, as in cuda-counter's exit probe. */
#include "examples.h"

SEC("kretprobe/" VADD)
int cuda__leave(void)
{
	struct xyz thread;

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	if (thread.x % 3 == 0) {
		char format[] = "Exited (with tsp) %lu\n";
		print(format, sizeof(format), thread.x);
	} else if (thread.x % 3 == 1) {
		char format[] = "Exited (without tsp) %lu\n";
		print(format, sizeof(format), thread.x);
	} else {
		char format[] = "Exited %lu\n";
		print(format, sizeof(format), thread.x);
	}
	return 0;
}
