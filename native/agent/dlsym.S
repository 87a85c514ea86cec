/* dlsym(handle, name).  The real one looks at its return address to know who asks (RTLD_NEXT), so
 * everything that is not answered here must reach it by a jump with the caller's frame intact. */
#if defined(__linux__) && defined(__ELF__)
.section .note.GNU-stack,"",%progbits
#endif
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
#if defined(__x86_64__)
    .cfi_startproc
#if defined(__CET__)
    endbr64
#endif
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call egpu_dlsym_answer
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 1f
    jmpq *egpu_real_dlsym(%rip)
1:  cmpq $-1, %rax
    jne 2f
    xorl %eax, %eax
2:  ret
    .cfi_endproc
#elif defined(__aarch64__)
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    bl egpu_dlsym_answer
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x30
    cbnz x9, 1f
    adrp x9, egpu_real_dlsym
    ldr x9, [x9, :lo12:egpu_real_dlsym]
    br x9
1:  cmn x9, #1
    csel x0, xzr, x9, eq
    ret
    .cfi_endproc
#else
#error "dlsym interposition is written for x86-64 and aarch64"
#endif
    .size dlsym, .-dlsym
