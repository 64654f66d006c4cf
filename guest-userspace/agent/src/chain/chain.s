// The call chain of every workload thread: root -> descend x n -> leaf, all with frame pointers.
//
// rbx holds the address of the thread's `Words` (chain.rs) throughout; the bracketed names are
// the byte offsets of its fields. Only rbx and rbp of the registers a C caller wants back are
// used; the roots save them. Nothing here touches thread-local storage, because threads of the
// `exit` workload have none.
//
// `.cfi_*` directives describe each instruction but those of 32-bit code; a root is the outermost frame.
//
// Every global label is a boundary that chain.rs gives a public name or an expectation; the two
// functions it calls have a second label for that, because one symbol cannot be a function and a
// variable to the compiler. "framed" is the first instruction at which the leaf's frame stands,
// "unframed" the first at which it no longer does.

// Tells the host; clobbers rax, rdx.
.macro ul_mark field
    mov eax, dword ptr [rbx + \field]
    mov edx, {MARK_PORT}
    out dx, eax
.endm

// Counts an iteration as done, then jumps to \again unless it was the last; clobbers rax, rdx.
.macro ul_count_and again
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    mov rdx, qword ptr [rbx + {STOP}]
    cmp dword ptr [rdx], 0
    jne 9f
    mov rax, qword ptr [rax]
    cmp rax, qword ptr [rbx + {LIMIT}]
    jb \again
9:
.endm

// The number and arguments of a `Call` into registers; clobbers rdi, rsi, rdx, r8, r10, rax.
.macro ul_load call
    mov rdi, qword ptr [rbx + \call + 8]
    mov rsi, qword ptr [rbx + \call + 16]
    mov rdx, qword ptr [rbx + \call + 24]
    mov r10, qword ptr [rbx + \call + 32]
    mov r8, qword ptr [rbx + \call + 40]
    mov rax, qword ptr [rbx + \call]
.endm

// Makes a `Call`, and leaves its answer there, unless its number is negative: then nothing.
.macro ul_do call
    ul_load \call
    test rax, rax
    js 8f
    syscall
    mov qword ptr [rbx + \call + {ANSWER}], rax
8:
.endm

// A frame with its pointer, and its end, for who reads frame pointers and for who reads `.eh_frame`.
.macro ul_enter
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
.endm
.macro ul_leave
    pop rbp
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
.endm

.text
.balign 64

// extern "sysv64" fn ul_root(words: *const Words)
// Ends the chain (rbp = 0, or another frame pointer that leads nowhere), calls down once, on the
// stack asked for, and returns when the leaf has.
.globl ul_root
.type ul_root, @function
ul_root:
    .cfi_startproc
    .cfi_undefined rip
.globl ul_root_start
ul_root_start:
    push rbp
    push rbx
    mov rbx, rdi
    mov qword ptr [rbx + {CALLERS_STACK}], rsp
    mov rax, qword ptr [rbx + {STACK_TOP}]
    test rax, rax
    cmovnz rsp, rax
    mov rbp, rsp
    and rbp, qword ptr [rbx + {END_ON_STACK}]
    add rbp, qword ptr [rbx + {END}]
    mov rcx, qword ptr [rbx + {DEPTH}]
    call ul_descend
.globl ul_root_return
ul_root_return:
    mov rsp, qword ptr [rbx + {CALLERS_STACK}]
    pop rbx
    pop rbp
    ret
    .cfi_endproc
.globl ul_root_end
ul_root_end:

// extern "sysv64" fn ul_exit_root(words, flags, stack_top, clear_tid) -> clone's answer
// Starts a thread on its own stack that ends the chain and calls down; the caller goes on.
.balign 64
.globl ul_exit_root
.type ul_exit_root, @function
ul_exit_root:
    .cfi_startproc
    .cfi_undefined rip
.globl ul_exit_root_start
ul_exit_root_start:
    push rbx
    mov rbx, rdi
    mov rdi, rsi
    mov rsi, rdx
    xor edx, edx
    mov r10, rcx
    xor r8d, r8d
    mov eax, {SYS_CLONE}
    syscall
    test rax, rax
    jz 2f
    pop rbx
    ret
2:  xor ebp, ebp
    mov rcx, qword ptr [rbx + {DEPTH}]
    call ul_descend
.globl ul_exit_root_return
ul_exit_root_return:
    ud2
    .cfi_endproc
.globl ul_exit_root_end
ul_exit_root_end:

// rcx frames of this function, then the leaf.
.balign 64
.globl ul_descend
.type ul_descend, @function
ul_descend:
    .cfi_startproc
    ul_enter
    dec rcx
    jz 2f
    call ul_descend
.globl ul_descend_return
ul_descend_return:
    .cfi_remember_state
    ul_leave
    ret
    .cfi_restore_state
2:  call qword ptr [rbx + {LEAF}]
.globl ul_descend_leaf_return
ul_descend_leaf_return:
    ul_leave
    ret
    .cfi_endproc
.globl ul_descend_end
ul_descend_end:

// spin: user mode only.
.balign 64
.globl ul_spin_leaf
.type ul_spin_leaf, @function
ul_spin_leaf:
    .cfi_startproc
    ul_enter
.globl ul_spin_framed
ul_spin_framed:
2:  ul_mark {ARM}
    mov ecx, {SPIN_ROUNDS}
.globl ul_spin_loop
ul_spin_loop:
    dec ecx
.globl ul_spin_loop_end
ul_spin_loop_end:
    jnz ul_spin_loop
    ul_mark {DONE}
    ul_count_and 2b
    ul_leave
.globl ul_spin_unframed
ul_spin_unframed:
    ret
    .cfi_endproc
.globl ul_spin_end
ul_spin_end:

// syscalls: a batch of getppid an iteration.
.balign 64
.globl ul_syscalls_leaf
.type ul_syscalls_leaf, @function
ul_syscalls_leaf:
    .cfi_startproc
    ul_enter
.globl ul_syscalls_framed
ul_syscalls_framed:
2:  ul_mark {ARM}
    mov r8d, {SYSCALLS_BATCH}
3:  mov eax, {SYS_GETPPID}
.globl ul_syscalls_call
ul_syscalls_call:
    syscall
.globl ul_syscalls_return
ul_syscalls_return:
    dec r8d
.globl ul_syscalls_return_end
ul_syscalls_return_end:
    jnz 3b
    ul_mark {DONE}
    ul_count_and 2b
    ul_leave
.globl ul_syscalls_unframed
ul_syscalls_unframed:
    ret
    .cfi_endproc
.globl ul_syscalls_end
ul_syscalls_end:

// deep: one getppid, then all the way up. A stub calls it, as an entry of a PLT does: by a jump.
.balign 64
.globl ul_deep_stub
ul_deep_stub:
    .cfi_startproc
    jmp ul_deep_leaf
    .cfi_endproc
.globl ul_deep_stub_end
ul_deep_stub_end:
.balign 64
.globl ul_deep_leaf
.type ul_deep_leaf, @function
ul_deep_leaf:
    .cfi_startproc
    ul_enter
.globl ul_deep_framed
ul_deep_framed:
    ul_mark {ARM}
    mov eax, {SYS_GETPPID}
.globl ul_deep_call
ul_deep_call:
    syscall
.globl ul_deep_return
ul_deep_return:
    nop
.globl ul_deep_return_end
ul_deep_return_end:
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    ul_leave
.globl ul_deep_unframed
ul_deep_unframed:
    ret
    .cfi_endproc
.globl ul_deep_end
ul_deep_end:

// sleep-migrate: blocks in a read of one byte (into the red zone). Anything but one byte read
// ends the loop; the answer is left in the chain.
.balign 64
.globl ul_sleep_leaf
.type ul_sleep_leaf, @function
ul_sleep_leaf:
    .cfi_startproc
    ul_enter
.globl ul_sleep_framed
ul_sleep_framed:
2:  ul_mark {ARM}
    mov edi, dword ptr [rbx + {FD}]
    lea rsi, [rsp - 8]
    mov edx, 1
    xor eax, eax
.globl ul_sleep_call
ul_sleep_call:
    syscall
.globl ul_sleep_return
ul_sleep_return:
    mov qword ptr [rbx + {RESULT}], rax
.globl ul_sleep_return_end
ul_sleep_return_end:
    ul_mark {DONE}
    cmp qword ptr [rbx + {RESULT}], 1
    jne 3f
    ul_count_and 2b
3:  ul_leave
.globl ul_sleep_unframed
ul_sleep_unframed:
    ret
    .cfi_endproc
.globl ul_sleep_end
ul_sleep_end:

// exit: the thread ends here. The address after `syscall` is frame 0 and never runs.
.balign 64
.globl ul_exit_leaf
.type ul_exit_leaf, @function
ul_exit_leaf:
    .cfi_startproc
    ul_enter
.globl ul_exit_framed
ul_exit_framed:
    ul_mark {ARM}
    xor edi, edi
    mov eax, {SYS_EXIT}
.globl ul_exit_call
ul_exit_call:
    syscall
.globl ul_exit_return
ul_exit_return:
    ud2
    .cfi_endproc
.globl ul_exit_end
ul_exit_end:

// missing-pages, paged-out: one getppid with pages of the stack gone, then all the way up. Between
// what is done before it and what is done after nothing touches the stack. perf-calls: in one
// iteration an operation on a perf event comes before the getppid.
.macro ul_gone_leaf kind
.balign 64
.globl ul_\kind\()_leaf
.type ul_\kind\()_leaf, @function
ul_\kind\()_leaf:
    .cfi_startproc
    ul_enter
.globl ul_\kind\()_framed
ul_\kind\()_framed:
    ul_mark {ARM}
    ul_do {BEFORE}
    ul_do {BEFORE_TOO}
    mov eax, {SYS_GETPPID}
.globl ul_\kind\()_call
ul_\kind\()_call:
    syscall
.globl ul_\kind\()_return
ul_\kind\()_return:
    nop
.globl ul_\kind\()_return_end
ul_\kind\()_return_end:
    ul_do {AFTER}
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    ul_leave
.globl ul_\kind\()_unframed
ul_\kind\()_unframed:
    ret
    .cfi_endproc
.globl ul_\kind\()_end
ul_\kind\()_end:
.endm

ul_gone_leaf missing
ul_gone_leaf paged
ul_gone_leaf calls

// shapes: calls of functions of every shape, a signal, then all the way up. What happens from
// `begin` on to the system call touches the stack below the leaf's frame only.
.balign 64
.globl ul_shapes_leaf
.type ul_shapes_leaf, @function
ul_shapes_leaf:
    .cfi_startproc
    ul_enter
.globl ul_shapes_framed
ul_shapes_framed:
    ul_mark {ARM}
.globl ul_shapes_begin
ul_shapes_begin:
    sub rsp, 24
.globl ul_shapes_begin_end
ul_shapes_begin_end:
    call ul_shapes_function
    call ul_shapes_frameless
    call ul_shapes_stub
    lea rax, [rip + ul_shapes_frameless]
    call rax
    mov edi, {CLOCK_MONOTONIC}
    mov rsi, rsp
    call {CLOCK_GETTIME}
    add rsp, 24
    ul_load {CALL}
.globl ul_shapes_call
ul_shapes_call:
    syscall
.globl ul_shapes_return
ul_shapes_return:
    nop
.globl ul_shapes_return_end
ul_shapes_return_end:
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    ul_leave
.globl ul_shapes_unframed
ul_shapes_unframed:
    ret
    .cfi_endproc
.globl ul_shapes_end
ul_shapes_end:

// With a frame, locals, and a call.
ul_shapes_function:
    .cfi_startproc
    ul_enter
    sub rsp, 32
    mov qword ptr [rbp - 8], rax
    call ul_shapes_frameless
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    .cfi_endproc

// Without a frame; the stack pointer moves.
ul_shapes_frameless:
    .cfi_startproc
    push rax
    .cfi_def_cfa_offset 16
    nop
    pop rax
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc

// As an entry of a PLT: jumps to where a slot says.
ul_shapes_stub:
    .cfi_startproc
    jmp qword ptr [rip + ul_shapes_slot]
    .cfi_endproc

// The handler of the signal.
.globl ul_shapes_handler
.type ul_shapes_handler, @function
ul_shapes_handler:
    .cfi_startproc
    ul_enter
    nop
    ul_leave
    ret
    .cfi_endproc
.globl ul_shapes_handler_end
ul_shapes_handler_end:

.data
.balign 8
ul_shapes_slot:
    .quad ul_shapes_function
.text

// fork, vfork, clone3: a child that exits at once, then all the way up.
.balign 64
.globl ul_fork_leaf
.type ul_fork_leaf, @function
ul_fork_leaf:
    .cfi_startproc
    ul_enter
.globl ul_fork_framed
ul_fork_framed:
    ul_mark {ARM}
    ul_load {CALL}
.globl ul_fork_call
ul_fork_call:
    syscall
.globl ul_fork_return
ul_fork_return:
    test rax, rax
.globl ul_fork_return_end
ul_fork_return_end:
    jz 3f
    mov qword ptr [rbx + {CALL} + {ANSWER}], rax
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    .cfi_remember_state
    ul_leave
.globl ul_fork_unframed
ul_fork_unframed:
    ret
    .cfi_restore_state
3:  xor edi, edi
    mov eax, {SYS_EXIT}
    syscall
    ud2
    .cfi_endproc
.globl ul_fork_end
ul_fork_end:

// process: a system call, perhaps with no page of the stack mapped, then the end of the process, whose status says that it got there.
.balign 64
.globl ul_process_leaf
.type ul_process_leaf, @function
ul_process_leaf:
    .cfi_startproc
    ul_enter
.globl ul_process_framed
ul_process_framed:
    ul_mark {ARM}
    ul_do {BEFORE}
    ul_load {CALL}
.globl ul_process_call
ul_process_call:
    syscall
.globl ul_process_return
ul_process_return:
    mov edi, {PLAIN_END}
.globl ul_process_return_end
ul_process_return_end:
    mov eax, {SYS_EXIT}
    syscall
    ud2
    .cfi_endproc
.globl ul_process_end
ul_process_end:

// io-uring: submits one request that is complete at once, and waits for that, then all the way up.
// Anything but one request submitted is left in the chain.
.balign 64
.globl ul_uring_leaf
.type ul_uring_leaf, @function
ul_uring_leaf:
    .cfi_startproc
    ul_enter
.globl ul_uring_framed
ul_uring_framed:
    ul_mark {ARM}
    mov rax, qword ptr [rbx + {URING_TAIL}]
    inc dword ptr [rax]
    mov edi, dword ptr [rbx + {FD}]
    mov esi, 1
    mov edx, 1
    mov r10d, {IORING_ENTER_GETEVENTS}
    xor r8d, r8d
    xor r9d, r9d
    mov eax, {SYS_IO_URING_ENTER}
.globl ul_uring_call
ul_uring_call:
    syscall
.globl ul_uring_return
ul_uring_return:
    mov qword ptr [rbx + {RESULT}], rax
.globl ul_uring_return_end
ul_uring_return_end:
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {URING_HEAD}]
    inc dword ptr [rax]
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    ul_leave
.globl ul_uring_unframed
ul_uring_unframed:
    ret
    .cfi_endproc
.globl ul_uring_end
ul_uring_end:

// exec: the process becomes another program here. The code behind `syscall` runs if it cannot.
.balign 64
.globl ul_exec_leaf
.type ul_exec_leaf, @function
ul_exec_leaf:
    .cfi_startproc
    ul_enter
.globl ul_exec_framed
ul_exec_framed:
    ul_mark {ARM}
    mov rdi, qword ptr [rbx + {EXEC_PATH}]
    mov rsi, qword ptr [rbx + {EXEC_ARGUMENTS}]
    xor edx, edx
    mov eax, {SYS_EXECVE}
.globl ul_exec_call
ul_exec_call:
    syscall
.globl ul_exec_return
ul_exec_return:
    mov edi, 1
    mov eax, {SYS_EXIT}
    syscall
    ud2
    .cfi_endproc
.globl ul_exec_end
ul_exec_end:

// entry: one of many ways into the kernel, by number, and its signal's handler. Nothing jumps
// through a register or memory: who steps through the leaf must see where it leads.
.balign 64
.globl ul_entry_leaf
.type ul_entry_leaf, @function
ul_entry_leaf:
    .cfi_startproc
    ul_enter
.globl ul_entry_framed
ul_entry_framed:
    ul_mark {ARM}
    ul_do {BEFORE}
    ul_do {BEFORE_TOO}
    ul_do {AFTER}
    mov ecx, dword ptr [rbx + {ENTRY}]
    mov rdx, qword ptr [rbx + {CALL} + 8]
    cmp ecx, {ENTRY_READ}
    je 11f
    cmp ecx, {ENTRY_WRITE}
    je 12f
    cmp ecx, {ENTRY_INT3}
    je 13f
    cmp ecx, {ENTRY_INT1}
    je 14f
    cmp ecx, {ENTRY_HALT}
    je 15f
    cmp ecx, {ENTRY_STEP}
    je 16f
    cmp ecx, {ENTRY_INT80}
    je 17f
    ul_load {CALL}
    syscall
.globl ul_entry_return
ul_entry_return:
    mov qword ptr [rbx + {CALL} + {ANSWER}], rax
    jmp 19f
11: mov al, byte ptr [rdx]
    jmp 19f
12: mov byte ptr [rdx], al
    jmp 19f
13: int3
    jmp 19f
14: .byte 0xf1                      // int1
    jmp 19f
15: hlt
    jmp 19f
16: pushfq
    or dword ptr [rsp], 0x100
    popfq
    nop
    jmp 19f
17: mov eax, {SYS_GETPPID_32}
    int 0x80
    mov qword ptr [rbx + {CALL} + {ANSWER}], rax
19: ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    jmp 20f
    .cfi_endproc
// rdx: the signal's `ucontext`. Skips the instruction if it would fault again, ends single steps,
// counts, and returns from the signal.
.globl ul_entry_handler
ul_entry_handler:
    .cfi_startproc
    mov eax, dword ptr [rbx + {ENTRY_SKIP}]
    add qword ptr [rdx + {UCONTEXT_RIP}], rax
    and qword ptr [rdx + {UCONTEXT_FLAGS}], -0x101
    inc qword ptr [rbx + {SIGNALS}]
    add rsp, 8
    .cfi_def_cfa_offset 0
    mov eax, {SYS_RT_SIGRETURN}
    syscall
    .cfi_endproc
// The end of the leaf, whose frame stands.
    .cfi_startproc
    .cfi_def_cfa rbp, 16
    .cfi_offset rbp, -16
20: ul_leave
.globl ul_entry_unframed
ul_entry_unframed:
    ret
    .cfi_endproc
.globl ul_entry_end
ul_entry_end:

// own-stack: a signal's handler makes the leaf's call, with its answer elsewhere, and leaves another one to the leaf. It
// is outside the leaf, whose stack is another.
.globl ul_own_handler
ul_own_handler:
    .cfi_startproc
    ul_enter
    ul_load {CALL}
    syscall
.globl ul_own_handler_return
ul_own_handler_return:
    mov qword ptr [rbx + {AFTER} + {ANSWER}], rax
    mov qword ptr [rbx + {CALL}], {SYS_GETPPID}
    ul_leave
    ret
    .cfi_endproc

// compat: root, `descend` and leaf in 32-bit code, on a stack below 4 GiB, to which a far return
// goes. The selectors are those of arch/x86/include/asm/segment.h: 0x23 __USER32_CS, 0x33
// __USER_CS. 32-bit code touches the stack only, because DS holds no segment. What the upper
// halves of registers hold after it is not defined, hence the way back by the stack.
//
// frameless: root -> descend x n -> leaf without frame pointers; rbp holds what is no address. Each
// label ul_bare_* inside of a function is where its CFA changes (see frameless.rs). All of an
// iteration lies between the marks, so that NMIs can come at each of its instructions.
// extern "sysv64" fn ul_bare_root(words: *const Words)
.balign 64
.globl ul_bare_root
.type ul_bare_root, @function
ul_bare_root:
    .cfi_startproc
    .cfi_undefined rip
.globl ul_bare_start
ul_bare_start:
    push rbp
    push rbx
    mov rbx, rdi
    mov qword ptr [rbx + {CALLERS_STACK}], rsp
    mov rax, qword ptr [rbx + {STACK_TOP}]
    test rax, rax
    cmovnz rsp, rax
    movabs rbp, {NO_ADDRESS}
    ul_mark {ARM}
.globl ul_bare_begin
ul_bare_begin:
    mov rcx, qword ptr [rbx + {DEPTH}]
    call ul_bare_descend
.globl ul_bare_root_return
ul_bare_root_return:
    nop
.globl ul_bare_done
ul_bare_done:
    ul_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    mov rsp, qword ptr [rbx + {CALLERS_STACK}]
    pop rbx
    pop rbp
    ret
    .cfi_endproc

.globl ul_bare_descend
.type ul_bare_descend, @function
ul_bare_descend:
    .cfi_startproc
    push r12
    .cfi_def_cfa_offset 16
    .cfi_offset r12, -16
.globl ul_bare_descend_pushed
ul_bare_descend_pushed:
    mov r12, rcx
    sub rsp, 24
    .cfi_def_cfa_offset 40
.globl ul_bare_descend_lowered
ul_bare_descend_lowered:
    dec rcx
    jz 2f
    call ul_bare_descend
.globl ul_bare_descend_return
ul_bare_descend_return:
    jmp 3f
2:  call ul_bare_tail
.globl ul_bare_descend_leaf_return
ul_bare_descend_leaf_return:
3:  add rsp, 24
    .cfi_def_cfa_offset 16
.globl ul_bare_descend_raised
ul_bare_descend_raised:
    pop r12
    .cfi_def_cfa_offset 8
    .cfi_restore r12
.globl ul_bare_descend_popped
ul_bare_descend_popped:
    ret
    .cfi_endproc

// Its frame is gone before the leaf has one: a tail call.
.globl ul_bare_tail
.type ul_bare_tail, @function
ul_bare_tail:
    .cfi_startproc
    push rcx
    .cfi_def_cfa_offset 16
.globl ul_bare_tail_pushed
ul_bare_tail_pushed:
    nop
    pop rcx
    .cfi_def_cfa_offset 8
.globl ul_bare_tail_popped
ul_bare_tail_popped:
    jmp qword ptr [rbx + {LEAF}]
    .cfi_endproc

.globl ul_bare_leaf
.type ul_bare_leaf, @function
ul_bare_leaf:
    .cfi_startproc
.globl ul_bare_body
ul_bare_body:
    push r13
    .cfi_def_cfa_offset 16
    .cfi_offset r13, -16
.globl ul_bare_leaf_pushed
ul_bare_leaf_pushed:
    sub rsp, 0x1000
    .cfi_def_cfa_offset 0x1010
.globl ul_bare_leaf_lowered
ul_bare_leaf_lowered:
    mov eax, {SYS_GETPPID}
.globl ul_bare_call
ul_bare_call:
    syscall
.globl ul_bare_return
ul_bare_return:
    nop
.globl ul_bare_return_end
ul_bare_return_end:
    push rax
    .cfi_def_cfa_offset 0x1018
.globl ul_bare_leaf_argument
ul_bare_leaf_argument:
    nop
    add rsp, 8
    .cfi_def_cfa_offset 0x1010
.globl ul_bare_leaf_dropped
ul_bare_leaf_dropped:
    add rsp, 0x1000
    .cfi_def_cfa_offset 16
.globl ul_bare_leaf_raised
ul_bare_leaf_raised:
    pop r13
    .cfi_def_cfa_offset 8
    .cfi_restore r13
.globl ul_bare_leaf_popped
ul_bare_leaf_popped:
    ret
    .cfi_endproc
.globl ul_bare_end
ul_bare_end:

// The leaf of own-stack-frameless, with the calls of the leaf of entries.
.globl ul_bare_own_leaf
.type ul_bare_own_leaf, @function
ul_bare_own_leaf:
    .cfi_startproc
    push r13
    .cfi_def_cfa_offset 16
    .cfi_offset r13, -16
.globl ul_bare_own_pushed
ul_bare_own_pushed:
    sub rsp, 0x1000
    .cfi_def_cfa_offset 0x1010
.globl ul_bare_own_lowered
ul_bare_own_lowered:
    ul_do {BEFORE}
    ul_do {BEFORE_TOO}
    ul_do {AFTER}
    ul_load {CALL}
    syscall
.globl ul_bare_own_return
ul_bare_own_return:
    mov qword ptr [rbx + {CALL} + {ANSWER}], rax
    add rsp, 0x1000
    .cfi_def_cfa_offset 16
.globl ul_bare_own_raised
ul_bare_own_raised:
    pop r13
    .cfi_def_cfa_offset 8
    .cfi_restore r13
.globl ul_bare_own_popped
ul_bare_own_popped:
    ret
    .cfi_endproc
.globl ul_bare_own_end
ul_bare_own_end:

// extern "sysv64" fn ul_compat_root(words: *const Words)
.balign 64
.globl ul_compat_root
.type ul_compat_root, @function
ul_compat_root:
    .cfi_startproc
    .cfi_undefined rip
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov qword ptr [rdi + {CALLERS_STACK}], rsp
    mov rsp, qword ptr [rdi + {STACK_TOP}]
    sub rsp, 16
    mov qword ptr [rsp], rdi
    lea rax, [rip + .Lcompat_back]
    mov rdx, 0x3300000000
    or rax, rdx
    push rax
    mov rcx, qword ptr [rdi + {DEPTH}]
    mov esi, dword ptr [rdi + {ARM}]
    mov ebx, dword ptr [rdi + {DONE}]
    mov edi, dword ptr [rdi + {ENTRY}]
    xor ebp, ebp
    lea rax, [rip + .Lcompat_start]
    push 0x23
    push rax
    .byte 0x48, 0xcb                // lretq
.code32
.Lcompat_start:
    call .Lcompat_descend
.globl ul_compat_root_return
ul_compat_root_return:
    .byte 0xcb                      // lretl: two words
.code64
.Lcompat_back:
    mov esp, esp
    mov rdi, qword ptr [rsp]
    mov rsp, qword ptr [rdi + {CALLERS_STACK}]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret
    .cfi_endproc

.code32
.balign 64
.globl ul_compat_descend
ul_compat_descend:
.Lcompat_descend:
    push ebp
    mov ebp, esp
    dec ecx
    jz 2f
    call .Lcompat_descend
.globl ul_compat_descend_return
ul_compat_descend_return:
    pop ebp
    ret
2:  call .Lcompat_leaf
.globl ul_compat_descend_leaf_return
ul_compat_descend_leaf_return:
    pop ebp
    ret
.globl ul_compat_descend_end
ul_compat_descend_end:

.balign 64
.globl ul_compat_leaf
ul_compat_leaf:
.Lcompat_leaf:
    push ebp
    mov ebp, esp
.globl ul_compat_framed
ul_compat_framed:
    mov eax, esi
    mov edx, {MARK_PORT}
    out dx, eax
.globl ul_compat_nop
ul_compat_nop:
    nop
.globl ul_compat_nop_end
ul_compat_nop_end:
    mov eax, {SYS_GETPPID_32}
    cmp edi, {ENTRY_CALL}
    je 3f
    cmp edi, {ENTRY_INT80}
    jne 2f
    int 0x80
    jmp 3f
    // Where a `ret` leads, whoever follows the code instruction by instruction reads from the stack.
2:  call .Lcompat_to_edi
3:
    mov eax, ebx
    mov edx, {MARK_PORT}
    out dx, eax
    pop ebp
.globl ul_compat_unframed
ul_compat_unframed:
    ret
.Lcompat_to_edi:
    push edi
    ret
.globl ul_compat_end
ul_compat_end:

    // As the 32-bit vDSO pushes them: the kernel returns to there (`do_fast_syscall_32`), and takes
    // the stack pointer from ebp.
.balign 64
.globl ul_compat_sysenter
ul_compat_sysenter:
    push ecx
    push edx
    push ebp
    mov ebp, esp
    sysenter
    ud2
.code64
