/* 7, the shape of launchlate: time from the call to the kernel's start, in bins of
 * powers of ten. */
#ifndef SHARED
#define SHARED BPF_MAP_TYPE_ARRAY
#define HISTOGRAM 1503
#define FLAGS 0
#define SITE "kprobe/" VADD
#endif
#include "examples.h"

#define TABLE(name, kind, entries)                                                                 \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(max_entries, entries);                                                      \
		__uint(map_flags, FLAGS);                                                         \
		__type(key, __u32);                                                                \
		__type(value, __u64);                                                              \
	} name SEC(".maps")

TABLE(time_histogram, HISTOGRAM, 10);
TABLE(last_uprobe_time, SHARED, 32);
TABLE(clock_offset, SHARED, 32);

SEC("uprobe")
int launching(void)
{
	__u32 key = 0;
	__u64 now = bpf_ktime_get_ns();

	bpf_map_update_elem(&last_uprobe_time, &key, &now, BPF_ANY);
	return 0;
}

SEC(SITE)
int cuda__start(void)
{
	__u32 key = 0, bin = 0;
	__u64 now = bpf_get_globaltimer();
	__u64 *last = bpf_map_lookup_elem(&last_uprobe_time, &key);
	__u64 *offset = bpf_map_lookup_elem(&clock_offset, &key);

	if (!last || !offset)
		return 0;
	__u64 called = *last + *offset;
	__u64 late = now > called ? now - called : 0;
	for (__u64 limit = 100; bin < 9 && late >= limit; limit *= 10)
		bin++;
	__u64 *count = bpf_map_lookup_elem(&time_histogram, &bin);
	if (count) /* a plain addition in the original, which loses samples */
		__sync_fetch_and_add(count, 1);
	return 0;
}
