// frameless-shapes: code without frame pointers in the forms that programs have besides calls. Each
// function is called at one place, so that the callers of each are known; rbx holds the address of the
// thread's words throughout, and rbp what is no address where nothing else is said.

.macro ul_odd_mark field
    mov eax, dword ptr [rbx + \field]
    mov edx, {MARK_PORT}
    out dx, eax
.endm

// Makes a `Call`.
.macro ul_odd_do call
    mov rdi, qword ptr [rbx + \call + 8]
    mov rsi, qword ptr [rbx + \call + 16]
    mov rdx, qword ptr [rbx + \call + 24]
    mov r10, qword ptr [rbx + \call + 32]
    mov r8, qword ptr [rbx + \call + 40]
    mov rax, qword ptr [rbx + \call]
    syscall
.endm

// A function that calls nothing.
.macro ul_odd_leaf name
.globl ul_odd_\name
ul_odd_\name:
    push rcx
    nop
    pop rcx
    ret
.globl ul_odd_\name\()_end
ul_odd_\name\()_end:
.endm

// An entry of a PLT whose slot is not bound: 16 bytes.
.macro ul_odd_entry
    jmp qword ptr [rip + 9f]
7:  .byte 0x68                      // push imm32
    .long 0
    .byte 0xe9                      // jmp rel32
    .long ul_odd_resolve - . - 4
.pushsection .data
.balign 8
9:  .quad 7b
.popsection
.endm

.text
.balign 64
// extern "sysv64" fn ul_odd_root(words: *const Words)
.globl ul_odd_root
.type ul_odd_root, @function
ul_odd_root:
.globl ul_odd_start
ul_odd_start:
    push rbp
    push rbx
    mov rbx, rdi
    mov qword ptr [rbx + {CALLERS_STACK}], rsp
    movabs rbp, {NO_ADDRESS}
    ul_odd_mark {ARM}
.globl ul_odd_begin
ul_odd_begin:
    call ul_odd_plt_second
.globl ul_odd_plt_return
ul_odd_plt_return:
    call ul_odd_near
.globl ul_odd_near_return
ul_odd_near_return:
    call ul_odd_own
.globl ul_odd_own_return
ul_odd_own_return:
    call ul_odd_framed
.globl ul_odd_framed_return
ul_odd_framed_return:
    nop
.globl ul_odd_begin_end
ul_odd_begin_end:
    ul_odd_do {BEFORE}
    mov qword ptr [rbx + {BEFORE} + {ANSWER}], rax
.globl ul_odd_late
ul_odd_late:
    call qword ptr [rbx + {ODD}]
.globl ul_odd_late_return
ul_odd_late_return:
    nop
.globl ul_odd_late_end
ul_odd_late_end:
    ul_odd_do {AFTER}
    mov qword ptr [rbx + {AFTER} + {ANSWER}], rax
.globl ul_odd_gone
ul_odd_gone:
    call qword ptr [rbx + {ODD} + 8]
.globl ul_odd_gone_return
ul_odd_gone_return:
    nop
.globl ul_odd_gone_end
ul_odd_gone_end:
    call ul_odd_raise
.globl ul_odd_raise_return
ul_odd_raise_return:
    ul_odd_mark {DONE}
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    mov rsp, qword ptr [rbx + {CALLERS_STACK}]
    pop rbx
    pop rbp
    ret
.globl ul_odd_root_end
ul_odd_root_end:

.balign 16
.globl ul_odd_plt
ul_odd_plt:
    ul_odd_entry
ul_odd_plt_second:
    ul_odd_entry
.globl ul_odd_plt_end
ul_odd_plt_end:

// Takes the entry's number away, and goes on to its target: a tail call.
.globl ul_odd_resolve
ul_odd_resolve:
    add rsp, 8
    jmp ul_odd_target
.globl ul_odd_resolve_end
ul_odd_resolve_end:

ul_odd_leaf target
ul_odd_leaf near_leaf
ul_odd_leaf own_leaf
ul_odd_leaf framed_leaf
ul_odd_leaf late_leaf
ul_odd_leaf gone_leaf
ul_odd_leaf handler

// rbp as a register like any other: it leads to the stack, and to no frame.
.globl ul_odd_own
ul_odd_own:
    push rbp
    lea rbp, [rsp + 16]
    call ul_odd_own_leaf
.globl ul_odd_own_leaf_return
ul_odd_own_leaf_return:
    pop rbp
    ret
.globl ul_odd_own_end
ul_odd_own_end:

// Sends the thread a signal.
.globl ul_odd_raise
ul_odd_raise:
    sub rsp, 24
    ul_odd_do {BEFORE_TOO}
.globl ul_odd_raised
ul_odd_raised:
    mov qword ptr [rbx + {BEFORE_TOO} + {ANSWER}], rax
    add rsp, 24
    ret
.globl ul_odd_raise_end
ul_odd_raise_end:

// To where a handler returns. It was not called: the byte before belongs to it.
.globl ul_odd_restorer_before
ul_odd_restorer_before:
    nop
.globl ul_odd_restorer
ul_odd_restorer:
    mov eax, {SYS_RT_SIGRETURN}
    syscall
.globl ul_odd_restorer_end
ul_odd_restorer_end:

// In a section of its own, which begins where that of the code above ends.
.globl ul_odd_near
ul_odd_near:
    sub rsp, 40
    call ul_odd_near_leaf
.globl ul_odd_near_leaf_return
ul_odd_near_leaf_return:
    add rsp, 40
    ret
.globl ul_odd_near_end
ul_odd_near_end:

// In no section, with a frame pointer.
.globl ul_odd_framed
ul_odd_framed:
    push rbp
    mov rbp, rsp
    call ul_odd_framed_leaf
.globl ul_odd_framed_leaf_return
ul_odd_framed_leaf_return:
    pop rbp
    ret
.globl ul_odd_framed_end
ul_odd_framed_end:

// What is copied to a page of its own. The section of that page comes before the first function is
// called, and goes before the second is.
.globl ul_odd_page
ul_odd_page:
    sub rsp, 8
    call qword ptr [rbx + {ODD} + 16]
.globl ul_odd_page_late_return
ul_odd_page_late_return:
    add rsp, 8
    ret
.globl ul_odd_page_gone
ul_odd_page_gone:
    sub rsp, 8
    call qword ptr [rbx + {ODD} + 24]
.globl ul_odd_page_gone_return
ul_odd_page_gone_return:
    add rsp, 8
    ret
.globl ul_odd_page_end
ul_odd_page_end:
