//! What registers hold after an instruction, and which instructions anchors are.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};

use super::Fields;
use super::anchor::{Anchor, Anything, TaskField};
use super::function::{Function, MAX_BYTES};
use super::values::{Base, Place, State, Value, Values};

/// `mov rbx,qword gs:0x2018`: the running task.
const TASK: &[u8] = &[0x65, 0x48, 0x8b, 0x1c, 0x25, 0x18, 0x20, 0, 0];
/// `mov ecx,dword [rdi+0x18]`: the number of a client's bit.
const BIT: &[u8] = &[0x8b, 0x4f, 0x18];
const AT: u64 = 0x1000;
const VALUES: Values = Values {
    current_task: Some(0x2018),
    work_bit: Some(0x18),
    no_return: None,
};

fn instruction(bytes: &[u8]) -> Instruction {
    let mut decoder = Decoder::with_ip(64, bytes, AT, DecoderOptions::NONE);
    let decoded = decoder.decode();
    assert!(!decoded.is_invalid() && decoded.len() == bytes.len());
    decoded
}

/// After the load of the task, that of a bit, and these.
fn state(code: &[&[u8]]) -> State {
    let all = [TASK, BIT].into_iter().chain(code.iter().copied());
    all.fold(State::at_entry(), |state, bytes| {
        VALUES.after(&instruction(bytes), &state)
    })
}

/// What a register holds then.
fn held(register: Register, code: &[&[u8]]) -> Value {
    state(code).get(register)
}

const NEW: Value = Value::Pointer(Base::Site(AT), 0);
const fn task(offset: i64) -> Value {
    Value::Pointer(Base::Task, offset)
}

#[test]
fn a_copy_holds_what_was_copied_and_half_a_pointer_is_none() {
    assert_eq!(
        held(Register::RAX, &[&[0x48, 0x89, 0xd8]]),
        task(0),
        "mov rax,rbx"
    );
    assert_eq!(
        held(Register::RAX, &[&[0x89, 0xd8]]),
        Value::Unknown,
        "mov eax,ebx"
    );
    assert_eq!(
        held(Register::RAX, &[&[0x89, 0xc8]]),
        Value::WorkBit,
        "mov eax,ecx"
    );
    assert_eq!(held(Register::EBX, &[]), Value::Unknown);
    assert_eq!(held(Register::ECX, &[]), Value::WorkBit);
    assert_eq!(held(Register::CL, &[]), Value::Unknown);
}

#[test]
fn constants_are_those_of_the_code() {
    let rax = |bytes: &[u8]| held(Register::RAX, &[bytes]);
    assert_eq!(rax(&[0x31, 0xc0]), Value::Constant(0), "xor eax,eax");
    assert_eq!(rax(&[0x48, 0x29, 0xc0]), Value::Constant(0), "sub rax,rax");
    assert_eq!(rax(&[0x31, 0xc8]), Value::Unknown, "xor eax,ecx");
    assert_eq!(rax(&[0xb8, 5, 0, 0, 0]), Value::Constant(5), "mov eax,5");
}

#[test]
fn a_pointer_goes_forward_by_constants() {
    let rbx = |bytes: &[u8]| held(Register::RBX, &[bytes]);
    assert_eq!(rbx(&[0x48, 0x83, 0xc3, 8]), task(8), "add rbx,8");
    assert_eq!(rbx(&[0x48, 0x83, 0xc3, 0]), task(0), "add rbx,0");
    assert_eq!(rbx(&[0x48, 0x83, 0xc3, 0xf8]), Value::Unknown, "add rbx,-8");
    assert_eq!(rbx(&[0x48, 0x01, 0xc3]), Value::Unknown, "add rbx,rax");
    assert_eq!(rbx(&[0x48, 0x83, 0xfb, 0]), task(0), "cmp rbx,0");

    let rax = |bytes: &[u8]| held(Register::RAX, &[bytes]);
    assert_eq!(
        rax(&[0x48, 0x8d, 0x83, 0, 9, 0, 0]),
        task(0x900),
        "lea rax,[rbx+0x900]"
    );
    assert_eq!(rax(&[0x48, 0x8d, 0x03]), task(0), "lea rax,[rbx]");
    assert_eq!(rax(&[0x48, 0x8d, 0x43, 0xf8]), NEW, "lea rax,[rbx-8]");
    let unknown = Value::Pointer(Base::Unknown, 8);
    assert_eq!(rax(&[0x48, 0x8d, 0x46, 8]), unknown, "lea rax,[rsi+8]");
    assert_eq!(rax(&[0x48, 0x8d, 0x46, 0xf8]), NEW, "lea rax,[rsi-8]");
}

#[test]
fn a_load_is_of_the_task_of_a_bit_or_of_a_new_pointer() {
    let rax = |bytes: &[u8]| held(Register::RAX, &[bytes]);
    let gs = |at: u8, mode: &[u8]| [&[0x65, 0x48, 0x8b][..], mode, &[at, 0x20, 0, 0]].concat();
    assert_eq!(rax(&gs(0x18, &[0x04, 0x25])), task(0), "mov rax,gs:0x2018");
    assert_eq!(
        rax(&gs(0x20, &[0x04, 0x25])),
        Value::Unknown,
        "mov rax,gs:0x2020"
    );
    assert_eq!(
        rax(&gs(0x18, &[0x86])),
        Value::Unknown,
        "mov rax,gs:[rsi+0x2018]"
    );
    assert_eq!(rax(&[0x48, 0x8b, 0x06]), NEW, "mov rax,[rsi]");
    assert_eq!(rax(&[0x8b, 0x06]), Value::Unknown, "mov eax,[rsi]");
    assert_eq!(
        rax(&[0x48, 0x63, 0x06]),
        Value::Unknown,
        "movsxd rax,dword [rsi]"
    );
    assert_eq!(
        rax(&[0x0f, 0xb6, 0x06]),
        Value::Unknown,
        "movzx eax,byte [rsi]"
    );

    let rcx = |bytes: &[u8]| held(Register::RCX, &[bytes]);
    assert_eq!(rcx(&[0x48, 0x8b, 0x4f, 0x18]), NEW, "mov rcx,[rdi+0x18]");
    assert_eq!(
        rcx(&[0x8b, 0x4f, 0x1c]),
        Value::Unknown,
        "mov ecx,[rdi+0x1c]"
    );
    assert_eq!(
        rcx(&[0x8b, 0x4b, 0x18]),
        Value::Unknown,
        "mov ecx,[rbx+0x18]"
    );
}

#[test]
fn a_place_has_a_base_and_nothing_else() {
    let place = |bytes: &[u8]| state(&[]).place(&instruction(bytes));
    let (base, offset) = (Base::Task, 8);
    assert_eq!(place(&[0x48, 0x8b, 0x53, 8]), Some(Place { base, offset }));
    for (bytes, text) in [
        (&[0x48, 0x8b, 0x14, 0x0b][..], "[rbx+rcx]"),
        (&[0x65, 0x48, 0x8b, 0x53, 8], "gs:[rbx+8]"),
        (&[0x48, 0x8b, 0x15, 0, 0, 0, 0], "[rip]"),
        (&[0x48, 0x8b, 0x14, 0x24], "[rsp]"),
    ] {
        assert_eq!(place(bytes), None, "mov rdx,{text}");
    }
}

#[test]
fn two_paths_agree_about_an_offset_without_a_base() {
    let after = |bytes: &[u8]| VALUES.after(&instruction(bytes), &state(&[]));
    let both = |one: &[u8], other: &[u8]| {
        let (mut state, other) = (after(one), after(other));
        let changed = state.join(&other);
        assert!(!state.join(&other), "what is forgotten stays forgotten");
        (state.get(Register::RAX), changed)
    };
    // lea rax,[rbx+8]; lea rax,[rdi+8]; lea rax,[rsi+8]; lea rax,[rdi+9]; xor eax,eax
    let of_task: &[u8] = &[0x48, 0x8d, 0x43, 8];
    let of_argument: &[u8] = &[0x48, 0x8d, 0x47, 8];
    let of_any: &[u8] = &[0x48, 0x8d, 0x46, 8];
    let farther: &[u8] = &[0x48, 0x8d, 0x47, 9];
    let unknown = Value::Pointer(Base::Unknown, 8);
    assert_eq!(both(of_task, of_task), (task(8), false));
    assert_eq!(both(of_task, of_argument), (unknown, true));
    assert_eq!(both(of_task, of_any), (unknown, true));
    assert_eq!(both(of_any, of_task), (unknown, false));
    assert_eq!(both(of_task, farther), (Value::Unknown, true));
    assert_eq!(both(of_task, &[0x31, 0xc0]), (Value::Unknown, true));
}

#[test]
fn a_register_that_holds_the_task_only_is_steady() {
    let steady = |register, code: &[&[u8]]| {
        let code: Vec<Instruction> = code.iter().map(|it| instruction(it)).collect();
        VALUES.steady(code.iter()).get(register)
    };
    let pop: &[u8] = &[0x5b];
    assert_eq!(
        steady(Register::RBX, &[TASK, pop, &[0x48, 0x85, 0xdb]]),
        task(0)
    );
    assert_eq!(
        steady(Register::RBX, &[TASK, &[0x48, 0x89, 0xc3]]),
        Value::Unknown
    );
    assert_eq!(
        steady(Register::RBX, &[&[0x48, 0x89, 0xc3], TASK]),
        Value::Unknown
    );
    assert_eq!(steady(Register::RBX, &[pop]), Value::Unknown);
    let other: &[u8] = &[0x65, 0x4c, 0x8b, 0x24, 0x25, 0x18, 0x20, 0, 0];
    assert_eq!(
        steady(Register::R12, &[other]),
        task(0),
        "mov r12,gs:0x2018"
    );
    let changed: &[u8] = &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x18, 0x20, 0, 0];
    assert_eq!(
        steady(Register::RAX, &[changed]),
        Value::Unknown,
        "mov rax,gs:0x2018"
    );
}

/// A function and the kernel's thunk for `ret`.
const FUNCTION: u64 = AT + 0x100;
const THUNK: u64 = AT + 0x200;

/// Whether the last of these instructions is an anchor.
fn is(anchor: &Anchor, code: &[&[u8]]) -> bool {
    let (last, before) = code.split_last().expect("an instruction");
    let fields = Fields {
        mask: Some(0x900),
        values: VALUES,
    };
    anchor.is(
        &instruction(last),
        &state(before),
        &fields,
        &|name| match name {
            "f" => Some(FUNCTION),
            "__x86_return_thunk" => Some(THUNK),
            _ => None,
        },
    )
}

#[track_caller]
fn only(anchor: Anchor, these: &[&[&[u8]]], not_those: &[&[&[u8]]]) {
    for code in these {
        assert!(is(&anchor, code), "{anchor:?}: {code:x?}");
    }
    for code in not_those {
        assert!(!is(&anchor, code), "{anchor:?}: {code:x?}");
    }
}

#[test]
fn fields_of_a_task_are_exchanged_loaded_and_cleared() {
    let mask = [0, 9, 0, 0];
    let id = [0x20, 9, 0, 0];
    let of = |code: &[u8], field: [u8; 4]| [code, &field].concat();
    let lock = [0xf0, 0x48, 0x0f, 0xb1, 0x8b];
    only(
        Anchor::Exchange(TaskField::Mask),
        &[&[&of(&lock, mask)]],
        &[
            &[&of(&lock[1..], mask)],
            &[&of(&[0xf0, 0x0f, 0xb1, 0x8b], mask)],
            &[&of(&lock, id)],
        ],
    );
    only(
        Anchor::Load(TaskField::Mask),
        // mov rax,[]; cmp [],rax
        &[
            &[&of(&[0x48, 0x8b, 0x83], mask)],
            &[&of(&[0x48, 0x39, 0x83], mask)],
        ],
        &[
            &[&of(&[0x48, 0x89, 0x83], mask)],
            &[&of(&[0x48, 0x8d, 0x83], mask)],
            &[&of(&lock, mask)],
            &[&of(&[0x48, 0x8b, 0x83], id)],
        ],
    );
    only(
        Anchor::Load(TaskField::Flags),
        &[&[&[0x48, 0x8b, 0x03]]],
        // mov eax,[rbx]; mov [rbx],rax; cmp [rbx],rax; mov rax,[rsi]
        &[
            &[&[0x8b, 0x03]],
            &[&[0x48, 0x89, 0x03]],
            &[&[0x48, 0x39, 0x03]],
            &[&[0x48, 0x8b, 0x06]],
        ],
    );
    let zero: &[u8] = &[0x31, 0xc0];
    let store = of(&[0x48, 0x89, 0x83], id);
    let with = |code: &[u8], number: &[u8]| [&of(code, id), number].concat();
    only(
        Anchor::Clear(TaskField::Id),
        // mov [],0; and [],0; mov [],rax with 0 in rax
        &[
            &[&with(&[0x48, 0xc7, 0x83], &[0; 4])],
            &[&with(&[0x48, 0x83, 0xa3], &[0])],
            &[zero, &store],
        ],
        // mov [],1; or [],0; mov dword [],0; mov [],rax; mov rax,[]; and rax,[]
        &[
            &[&with(&[0x48, 0xc7, 0x83], &[1, 0, 0, 0])],
            &[&with(&[0x48, 0x83, 0x8b], &[0])],
            &[&with(&[0xc7, 0x83], &[0; 4])],
            &[&store],
            &[zero, &of(&[0x48, 0x8b, 0x83], id)],
            &[zero, &of(&[0x48, 0x23, 0x83], id)],
        ],
    );
}

#[test]
fn the_bit_of_a_client_is_loaded_marked_compared_and_tested() {
    let any = Anything::Any;
    only(
        Anchor::LoadBit(any),
        &[&[BIT], &[&[0x48, 0x63, 0x4f, 0x18]]],
        // cmp [],5; mov [],ecx; another field
        &[
            &[&[0x83, 0x7f, 0x18, 5]],
            &[&[0x89, 0x4f, 0x18]],
            &[&[0x8b, 0x4f, 0x1c]],
        ],
    );
    only(
        Anchor::MarkBit(any),
        &[&[&[0xc7, 0x47, 0x18, 0xff, 0xff, 0xff, 0xff]]],
        // 0; or [],-1; another field
        &[
            &[&[0xc7, 0x47, 0x18, 0, 0, 0, 0]],
            &[&[0x83, 0x4f, 0x18, 0xff]],
            &[&[0xc7, 0x47, 0x1c, 0xff, 0xff, 0xff, 0xff]],
        ],
    );
    let zero: &[u8] = &[0x31, 0xc0];
    only(
        Anchor::SignOfBit(any),
        // test ecx,ecx; cmp ecx,0; cmp [],0
        &[
            &[&[0x85, 0xc9]],
            &[&[0x83, 0xf9, 0]],
            &[&[0x83, 0x7f, 0x18, 0]],
        ],
        // test ecx,eax; test eax,ecx; cmp ecx,1; cmp ecx,eax; cmp eax,0; and ecx,0
        &[
            &[&[0x85, 0xc1]],
            &[&[0x85, 0xc8]],
            &[&[0x83, 0xf9, 1]],
            &[zero, &[0x39, 0xc1]],
            &[&[0x83, 0xf8, 0]],
            &[&[0x83, 0xe1, 0]],
        ],
    );
    only(
        Anchor::TestBit(any),
        &[&[&[0x48, 0x0f, 0xa3, 0x0e]]],
        // bt rax,rcx; bt [rsi],5; bt [rsi],rdx; bts [rsi],rcx
        &[
            &[&[0x48, 0x0f, 0xa3, 0xc8]],
            &[&[0x48, 0x0f, 0xba, 0x26, 5]],
            &[&[0x48, 0x0f, 0xa3, 0x16]],
            &[&[0x48, 0x0f, 0xab, 0x0e]],
        ],
    );
}

#[test]
fn calls_and_returns_go_where_they_say() {
    let to = |code: &[u8], target: u64| {
        let length = code.len() as u64 + 4;
        let distance = i32::try_from(target - AT - length).expect("near");
        [code, &distance.to_le_bytes()].concat()
    };
    let (call, jump, if_zero) = ([0xe8], [0xe9], [0x0f, 0x84]);
    only(
        Anchor::Call("f".to_owned()),
        &[&[&to(&call, FUNCTION)], &[&to(&jump, FUNCTION)]],
        &[
            &[&to(&if_zero, FUNCTION)],
            &[&to(&call, THUNK)],
            &[&[0xff, 0xd0]],
        ],
    );
    only(
        Anchor::Return(Anything::Any),
        &[&[&[0xc3]], &[&to(&jump, THUNK)]],
        &[
            &[&to(&jump, FUNCTION)],
            &[&to(&call, THUNK)],
            &[&to(&if_zero, THUNK)],
            &[&[0xff, 0xe0]],
        ],
    );
}

/// Padding is no code, and what is behind it neither.
#[test]
fn a_function_ends_at_its_padding_and_has_a_length() {
    let steps = |code: &[u8]| {
        let function = Function::decode(AT, code, &VALUES, &|_, _| None)?;
        Some(function.steps().count())
    };
    assert_eq!(steps(&[0x90, 0x90, 0xcc, 0x90]), Some(2));
    assert_eq!(
        steps(&[0x90, 0x06, 0x90]),
        Some(1),
        "no instruction in this mode"
    );
    let long = vec![0x90; MAX_BYTES];
    assert!(steps(&long).is_some());
    assert_eq!(steps(&[&long[..], &[0x90]].concat()), None);
}
