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
    .cfi_startproc
    push rcx
    .cfi_def_cfa_offset 16
    nop
    pop rcx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.globl ul_odd_\name\()_end
ul_odd_\name\()_end:
.endm

// An entry of a PLT whose slot is not bound: 16 bytes.
.macro ul_odd_entry
    .cfi_startproc
    jmp qword ptr [rip + 9f]
7:  .byte 0x68                      // push imm32
    .long 0
    .cfi_def_cfa_offset 16
    .byte 0xe9                      // jmp rel32
    .long ul_odd_resolve - . - 4
    .cfi_endproc
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
    .cfi_startproc
    .cfi_undefined rip
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
    .cfi_endproc
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
    .cfi_startproc
    .cfi_def_cfa_offset 16
    add rsp, 8
    .cfi_def_cfa_offset 8
    jmp ul_odd_target
    .cfi_endproc
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
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    lea rbp, [rsp + 16]
    call ul_odd_own_leaf
.globl ul_odd_own_leaf_return
ul_odd_own_leaf_return:
    pop rbp
    .cfi_def_cfa_offset 8
    .cfi_restore rbp
    ret
    .cfi_endproc
.globl ul_odd_own_end
ul_odd_own_end:

// Sends the thread a signal.
.globl ul_odd_raise
ul_odd_raise:
    .cfi_startproc
    sub rsp, 24
    .cfi_def_cfa_offset 32
    ul_odd_do {BEFORE_TOO}
.globl ul_odd_raised
ul_odd_raised:
    mov qword ptr [rbx + {BEFORE_TOO} + {ANSWER}], rax
    add rsp, 24
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.globl ul_odd_raise_end
ul_odd_raise_end:

// To where a handler returns. It was not called: the byte before belongs to it.
.globl ul_odd_restorer_before
ul_odd_restorer_before:
    .cfi_startproc
    .cfi_signal_frame
    .cfi_def_cfa rsp, {UCONTEXT_RIP} + 8
    .cfi_offset rip, -8
    .cfi_offset rsp, -16
    .cfi_offset rcx, -24
    .cfi_offset rax, -32
    .cfi_offset rdx, -40
    .cfi_offset rbx, -48
    .cfi_offset rbp, -56
    .cfi_offset rsi, -64
    .cfi_offset rdi, -72
    .cfi_offset r15, -80
    .cfi_offset r14, -88
    .cfi_offset r13, -96
    .cfi_offset r12, -104
    .cfi_offset r11, -112
    .cfi_offset r10, -120
    .cfi_offset r9, -128
    .cfi_offset r8, -136
    nop
.globl ul_odd_restorer
ul_odd_restorer:
    mov eax, {SYS_RT_SIGRETURN}
    syscall
    .cfi_endproc
.globl ul_odd_restorer_end
ul_odd_restorer_end:

// In a section of its own, which begins where that of the code above ends.
.globl ul_odd_near
ul_odd_near:
    .cfi_startproc
    sub rsp, 40
    .cfi_def_cfa_offset 48
    call ul_odd_near_leaf
.globl ul_odd_near_leaf_return
ul_odd_near_leaf_return:
    add rsp, 40
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.globl ul_odd_near_end
ul_odd_near_end:

// In no section, with a frame pointer.
.globl ul_odd_framed
ul_odd_framed:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    call ul_odd_framed_leaf
.globl ul_odd_framed_leaf_return
ul_odd_framed_leaf_return:
    pop rbp
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    .cfi_endproc
.globl ul_odd_framed_end
ul_odd_framed_end:

// What is copied to a page of its own. The section of that page comes before the first function is
// called, and goes before the second is.
.globl ul_odd_page
ul_odd_page:
    // No `.eh_frame` for the copy.
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
