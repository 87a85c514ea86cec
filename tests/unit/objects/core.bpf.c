// SPDX-License-Identifier: Apache-2.0 OR MIT
// CO-RE relocations of every kind, about types of the Linux kernel and some that it does not have.
#include "egpu.bpf.h"

#define __core __attribute__((preserve_access_index))
#define field_info __builtin_preserve_field_info
#define type_info __builtin_preserve_type_info
#define FIELD_BYTE_OFFSET 0
#define FIELD_BYTE_SIZE 1
#define FIELD_EXISTS 2
#define FIELD_SIGNED 3
#define FIELD_LSHIFT_U64 4
#define FIELD_RSHIFT_U64 5
#define TYPE_EXISTS 0
#define TYPE_SIZE 1
#define TYPE_MATCHES 2
#define type_of(type) (*(type *)0)

struct list_head {
    struct list_head *next, *prev;
};
typedef int pid_t;
typedef unsigned short umode_t;
struct task_struct {
    int on_cpu;
    pid_t pid, tgid;
    unsigned sched_reset_on_fork : 1;
    unsigned in_execve : 1;
    struct list_head tasks;
    char comm[16];
    struct task_struct *parent;
    int no_such_field;
} __core;
struct task_struct___old {
    long state;
} __core;
struct task_struct___new {
    unsigned __state;
} __core;
struct inode {
    umode_t i_mode;
    unsigned long i_ino;
    unsigned i_nlink; // inside a nameless union
} __core;
struct no_such_struct {
    int member;
} __core;
enum pid_type {
    PIDTYPE_PID,
    PIDTYPE_TGID = 77,
    PIDTYPE_NONE_SUCH,
};
union no_union {
    int a;
} __core;

// Every value that a relocation leaves in an instruction is stored, so that a run shows it.
SEC("kprobe/values")
int values(__u64 *out)
{
    struct task_struct *task = 0;
    out[0] = field_info(task->pid, FIELD_BYTE_OFFSET);
    out[1] = field_info(task->pid, FIELD_BYTE_SIZE);
    out[2] = field_info(task->pid, FIELD_EXISTS);
    out[3] = field_info(task->pid, FIELD_SIGNED);
    out[4] = field_info(task->in_execve, FIELD_BYTE_OFFSET);
    out[5] = field_info(task->in_execve, FIELD_BYTE_SIZE);
    out[6] = field_info(task->in_execve, FIELD_LSHIFT_U64);
    out[7] = field_info(task->in_execve, FIELD_RSHIFT_U64);
    out[8] = field_info(task->in_execve, FIELD_SIGNED);
    out[9] = field_info(task->no_such_field, FIELD_EXISTS);
    out[10] = field_info(((struct task_struct___old *)0)->state, FIELD_EXISTS);
    out[11] = field_info(((struct task_struct___new *)0)->__state, FIELD_EXISTS);
    out[12] = field_info(((struct task_struct___new *)0)->__state, FIELD_BYTE_OFFSET);
    out[13] = field_info(((struct inode *)0)->i_nlink, FIELD_BYTE_OFFSET);
    out[14] = field_info(((struct inode *)0)->i_mode, FIELD_BYTE_SIZE);
    out[15] = field_info(task->comm[3], FIELD_BYTE_OFFSET);
    out[16] = field_info(task->tasks.prev, FIELD_BYTE_OFFSET);
    out[17] = type_info(type_of(struct task_struct), TYPE_EXISTS);
    out[18] = type_info(type_of(struct no_such_struct), TYPE_EXISTS);
    out[19] = type_info(type_of(struct list_head), TYPE_SIZE);
    out[20] = type_info(type_of(struct list_head), TYPE_MATCHES);
    out[21] = type_info(type_of(struct task_struct), TYPE_MATCHES);
    out[22] = __builtin_preserve_enum_value(*(enum pid_type *)PIDTYPE_TGID, 1);
    out[23] = __builtin_preserve_enum_value(*(enum pid_type *)PIDTYPE_TGID, 0);
    out[24] = __builtin_preserve_enum_value(*(enum pid_type *)PIDTYPE_NONE_SUCH, 0);
    out[25] = __builtin_btf_type_id(type_of(struct list_head), 0);
    out[26] = __builtin_btf_type_id(type_of(struct list_head), 1);
    out[27] = type_info(type_of(umode_t), TYPE_SIZE);
    out[28] = type_info(type_of(union no_union), TYPE_SIZE);
    return 0;
}

// Loads and stores whose offsets change.
SEC("kprobe/accesses")
int accesses(struct task_struct *task)
{
    task->on_cpu = 5;
    task->tgid = task->pid;
    return task->comm[2];
}

// Guarded by a test, so that it may be loaded where the field is missing.
SEC("kprobe/guarded")
int guarded(struct task_struct *task)
{
    if (field_info(task->no_such_field, FIELD_EXISTS))
        return task->no_such_field;
    return 1;
}

SEC("kprobe/unguarded")
int unguarded(struct task_struct *task)
{
    return task->no_such_field;
}

char LICENSE[] SEC("license") = "GPL";
