// interpreter: root -> descend x n -> interpreter -> native leaf, all with frame pointers. What lies between the
// interpreter and the leaf are interpreted functions: they have no frames here, but calls in the activation on
// the interpreter's stack (`Activation` in unwinder/src/interpreted.rs), whose address is rsp.
//
// rbx holds the address of the thread's words throughout, r12 the address of the program's next byte, r13 that of
// its first.

.text
.balign 64
.globl ul_interpret
.type ul_interpret, @function
ul_interpret:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push r12
    .cfi_offset r12, -24
    push r13
    .cfi_offset r13, -32
    sub rsp, {DISTANCE} - 16
    mov qword ptr [rsp], 0
    lea r13, [rip + ul_program]
    lea r12, [r13 + {FUNCTIONS}]
.globl ul_interpret_framed
ul_interpret_framed:
2:  movzx eax, byte ptr [r12]
    inc r12
    cmp al, {NOTHING}
    je 2b
    cmp al, {CALL_FUNCTION}
    je 3f
    cmp al, {RETURN}
    je 4f
    cmp al, {CALL_NATIVE}
    je 5f
    jmp 6f
// Writes the call, then counts it: from the next instruction on it is made.
3:  movzx ecx, byte ptr [r12]
    inc r12
    mov rdx, qword ptr [rsp]
    cmp rdx, {MAX_CALLS}
    jae 6f
    shl rdx, 4
    mov qword ptr [rsp + rdx + {CALLS}], rcx
    mov qword ptr [rsp + rdx + {CALLS} + 8], r12
    movzx ecx, byte ptr [r13 + rcx]
    lea r12, [r13 + rcx]
    inc qword ptr [rsp]
.globl ul_interpret_called
ul_interpret_called:
    jmp 2b
4:  dec qword ptr [rsp]
.globl ul_interpret_returned
ul_interpret_returned:
    mov rdx, qword ptr [rsp]
    shl rdx, 4
    mov r12, qword ptr [rsp + rdx + {CALLS} + 8]
    jmp 2b
5:  call ul_native_leaf
.globl ul_interpret_return
ul_interpret_return:
    jmp 2b
6:  nop
.globl ul_interpret_unframed
ul_interpret_unframed:
    add rsp, {DISTANCE} - 16
    pop r13
    .cfi_restore r13
    pop r12
    .cfi_restore r12
    pop rbp
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    .cfi_endproc
.globl ul_interpret_end
ul_interpret_end:

// What interpreted functions call: one getppid.
.balign 64
.globl ul_native_leaf
.type ul_native_leaf, @function
ul_native_leaf:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
.globl ul_native_framed
ul_native_framed:
    mov eax, dword ptr [rbx + {ARM}]
    mov edx, {MARK_PORT}
    out dx, eax
    mov eax, {SYS_GETPPID}
.globl ul_native_call
ul_native_call:
    syscall
.globl ul_native_return
ul_native_return:
    nop
.globl ul_native_return_end
ul_native_return_end:
    mov eax, dword ptr [rbx + {DONE}]
    mov edx, {MARK_PORT}
    out dx, eax
    mov rax, qword ptr [rbx + {PROGRESS}]
    inc qword ptr [rax]
    pop rbp
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
.globl ul_native_unframed
ul_native_unframed:
    ret
    .cfi_endproc
.globl ul_native_end
ul_native_end:

// The program: where functions start, then f, which calls g, which calls h, which calls the native leaf.
.pushsection .rodata
ul_program:
    .byte 5f - ul_program, 6f - ul_program, 7f - ul_program
    .byte {CALL_FUNCTION}, 0, {END}
5:  .byte {NOTHING}, {CALL_FUNCTION}, 1, {NOTHING}, {RETURN}
6:  .byte {CALL_FUNCTION}, 2, {NOTHING}, {RETURN}
7:  .byte {NOTHING}, {CALL_NATIVE}, {RETURN}
.popsection
