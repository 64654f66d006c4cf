//! Stops, pauses, ports and memory, on whatever KVM there is: no guest executes an instruction that a
//! KVM with an incomplete instruction emulator could not.

use std::time::{Duration, Instant};

use super::failure::{Failure, Outcome, holds, refusal, same, some};
use super::lab::{ADDRESS, BELL, Lab, PATIENCE, guest, machine, next_stop, started, vcpu};
use crate::probe::probe;
use crate::{InspectError, Pause, ResumeError, Run, Stop, open_kvm};

super::checks! {
    Machines:
        a_doorbell_stops_with_size_and_value
        after_a_doorbell_the_output_is_done
        every_doorbell_arrives_once_and_in_order
        pause_and_stop_of_its_own_at_the_same_moment_lose_nothing
        what_needs_a_stopped_vcpu_is_refused_while_it_runs
        the_console_keeps_what_the_guest_writes
        a_triple_fault_is_a_shutdown
        a_reset_by_the_keyboard_controller_is_told
        string_output_rings_for_each_item
        where_nothing_is_all_ones_are_read
        a_sleeping_vcpu_can_be_paused
        eight_vcpus_start_stop_and_wait
        an_nmi_is_confirmed_and_a_second_one_refused
        the_probe_comes_to_a_verdict_in_time;
}

guest!(sizes:
    "mov eax, 0x12345678"
    "out 0xe0, al"
    "out 0xe1, ax"
    "out 0xef, eax"
    "99: hlt"
    "jmp 99b"
);

guest!(counter:
    "xor eax, eax"
    "2: out 0xe0, eax"
    "inc eax"
    "jmp 2b"
);

// Counts in rbx, and rings with its low half each 65,536th time.
guest!(busy:
    "sti"
    "xor ebx, ebx"
    "2: inc rbx"
    "test bx, bx"
    "jnz 2b"
    "mov rax, rbx"
    "shr rax, 16"
    "out 0xe0, eax"
    "jmp 2b"
);

guest!(hello:
    "lea rsi, [rip + 3f]"
    "mov ecx, 5"
    "mov edx, 0x3f8"
    "2: mov al, [rsi]"
    "out dx, al"
    "inc rsi"
    "dec ecx"
    "jnz 2b"
    "out 0xe0, eax"
    "3: .ascii \"hello\""
);

// An interrupt table that is not there: the first exception ends in a triple fault.
guest!(triple_fault:
    "lidt [rip + 2f]"
    "mov byte ptr [0xffffffffffff0000], 1"
    "2: .quad 0, 0"
);

guest!(keyboard_reset: "mov al, 0xfe" "out 0x64, al");
// Guests that spin let interrupts in, of which there are none: Bochs stands still in others (docs/intel.md).
guest!(silent: "sti" "99: jmp 99b");
guest!(sleeper: "cli" "99: hlt" "jmp 99b");
guest!(string_output: "mov rsi, 0x100000" "mov ecx, 3" "mov edx, 0xe0" "rep outsb" "99: hlt" "jmp 99b");
guest!(nowhere:
    "mov eax, [0xd0000000]"
    "out 0xe0, eax"
    "mov [0xd0000000], eax"
    "mov dx, 0x1234"
    "in eax, dx"
    "out 0xe1, eax"
    "mov dx, 0x3fd"
    "in al, dx"
    "out 0xe2, al"
    "99: hlt"
    "jmp 99b"
);

// Starts the other vCPUs by the local APIC; each rings with 16-bit code, then the first does.
guest!(starter:
    "lea rsi, [rip + 4f]"
    "mov edi, 0x30000"
    "mov ecx, 16"
    "2: mov al, [rsi]"
    "mov [rdi], al"
    "inc rsi"
    "inc rdi"
    "dec ecx"
    "jnz 2b"
    "mov ebx, 0xfee00300"
    "mov dword ptr [rbx], 0x000c4500"
    "mov dword ptr [rbx], 0x000c4630"
    "mov dword ptr [rbx], 0x000c4630"
    "mov eax, 0xb5b"
    "out 0xe1, eax"
    "99: hlt"
    "jmp 99b"
    ".code16"
    "4: mov ax, 0xa9"
    "out 0xe0, ax"
    "99: hlt"
    "jmp 99b"
    ".code64"
);

fn a_doorbell_stops_with_size_and_value(_: &Lab) -> Outcome {
    let mut machine = started(1, sizes())?;
    for (port, size, value) in [(0xe0, 1, 0x78), (0xe1, 2, 0x5678), (0xef, 4, 0x1234_5678)] {
        same!(next_stop(&mut machine)?, Stop::Port { port, size, value });
        let mut cpu = vcpu(&mut machine)?;
        same!(cpu.stop(), Some(Stop::Port { port, size, value }));
        cpu.resume(Run::Continue)?;
    }
    same!(machine.next_event(Duration::from_millis(20)), None);
    Ok(())
}

fn after_a_doorbell_the_output_is_done(_: &Lab) -> Outcome {
    let mut machine = started(1, sizes())?;
    next_stop(&mut machine)?;
    let cpu = vcpu(&mut machine)?;
    let regs = cpu.regs()?;
    // `mov eax, imm32` has 5 bytes, `out imm8, al` two.
    same!(regs.rip, ADDRESS + 7);
    same!(regs.rax, 0x1234_5678);
    same!(regs.rsi, 0x7000, "the boot protocol's zero page");
    let sregs = cpu.sregs()?;
    same!(sregs.cs.l, 1, "64-bit code");
    let mut code = [0; 7];
    cpu.read_virt(ADDRESS, &mut code)?;
    same!(Some(code.as_slice()), sizes().get(..7));
    same!(cpu.translate(ADDRESS)?, Some(ADDRESS));
    same!(cpu.translate(1 << 40)?, None);
    holds!(matches!(
        cpu.read_virt(0x40_0000 - 1, &mut code),
        Err(InspectError::Unmapped {
            address: 0x40_0000,
            ..
        })
    ));
    same!(cpu.msr(0xc000_0080)? & 0x500, 0x500, "EFER: long mode");
    holds!(matches!(
        cpu.msr(0xdead_beef),
        Err(InspectError::NoSuchMsr { .. })
    ));
    Ok(())
}

fn every_doorbell_arrives_once_and_in_order(lab: &Lab) -> Outcome {
    let mut machine = started(1, counter())?;
    for value in 0..lab.rounds(2_000) {
        same!(
            next_stop(&mut machine)?,
            Stop::Port {
                port: BELL,
                size: 4,
                value
            }
        );
        vcpu(&mut machine)?.resume(Run::Continue)?;
    }
    Ok(())
}

fn pause_and_stop_of_its_own_at_the_same_moment_lose_nothing(lab: &Lab) -> Outcome {
    let mut machine = started(1, busy())?;
    let (mut expected, mut paused, mut own, mut last) = (1, 0, 0, 0);
    for round in 0..lab.rounds(10_000) {
        // Pauses of ever other lengths, so that they meet the doorbell at every phase.
        for _ in 0..round % 97 * 16 {
            std::hint::spin_loop();
        }
        match vcpu(&mut machine)?.pause()? {
            Pause::Paused => {
                paused += 1;
                same!(machine.next_event(Duration::ZERO), None);
            }
            Pause::StoppedItself => {
                own += 1;
                let refused = vcpu(&mut machine)?.resume(Run::Continue);
                // A stop that nobody has seen cannot be resumed from.
                holds!(
                    matches!(refused, Err(ResumeError::NotSeen { .. })),
                    "{refused:?}"
                );
                let event = some(machine.next_event(Duration::ZERO), "the stop")?;
                same!(
                    event.stop,
                    Stop::Port {
                        port: BELL,
                        size: 4,
                        value: expected
                    }
                );
                expected += 1;
            }
            Pause::WasStopped => return Err(Failure::unexpected("stopped", "it was resumed")),
        }
        let mut cpu = vcpu(&mut machine)?;
        same!(cpu.pause()?, Pause::WasStopped);
        let count = cpu.regs()?.rbx;
        holds!(count >= last, "the guest went back");
        last = count;
        cpu.resume(Run::Continue)?;
    }
    holds!(paused > 0, "only stops of its own: {own}");
    same!(u64::from(expected) - 1, last >> 16);
    Ok(())
}

fn what_needs_a_stopped_vcpu_is_refused_while_it_runs(_: &Lab) -> Outcome {
    let mut machine = started(1, silent())?;
    let mut cpu = vcpu(&mut machine)?;
    same!(cpu.stop(), None);
    holds!(matches!(
        cpu.regs(),
        Err(InspectError::NotStopped { vcpu: 0 })
    ));
    holds!(cpu.inject_nmi().is_err());
    holds!(cpu.set_breakpoints(&[]).is_err());
    holds!(matches!(
        cpu.resume(Run::Continue),
        Err(ResumeError::NotStopped { vcpu: 0 })
    ));
    holds!(machine.vcpu(1).is_none());
    Ok(())
}

fn the_console_keeps_what_the_guest_writes(_: &Lab) -> Outcome {
    let mut machine = started(1, hello())?;
    holds!(matches!(next_stop(&mut machine)?, Stop::Port { .. }));
    same!(machine.console().snapshot().as_slice(), b"hello");
    same!(machine.console().len(), 5);
    Ok(())
}

fn a_triple_fault_is_a_shutdown(_: &Lab) -> Outcome {
    same!(next_stop(&mut started(1, triple_fault())?)?, Stop::Shutdown);
    Ok(())
}

fn a_reset_by_the_keyboard_controller_is_told(_: &Lab) -> Outcome {
    same!(
        next_stop(&mut started(1, keyboard_reset())?)?,
        Stop::Reset { port: 0x64 }
    );
    Ok(())
}

fn string_output_rings_for_each_item(_: &Lab) -> Outcome {
    let mut machine = started(1, string_output())?;
    for byte in string_output().iter().take(3) {
        let value = u32::from(*byte);
        same!(
            next_stop(&mut machine)?,
            Stop::Port {
                port: BELL,
                size: 1,
                value
            }
        );
        vcpu(&mut machine)?.resume(Run::Continue)?;
    }
    Ok(())
}

fn where_nothing_is_all_ones_are_read(_: &Lab) -> Outcome {
    let mut machine = started(1, nowhere())?;
    for (port, size, value) in [(0xe0, 4, u32::MAX), (0xe1, 4, u32::MAX), (0xe2, 1, 0x60)] {
        same!(next_stop(&mut machine)?, Stop::Port { port, size, value });
        vcpu(&mut machine)?.resume(Run::Continue)?;
    }
    Ok(())
}

fn a_sleeping_vcpu_can_be_paused(_: &Lab) -> Outcome {
    let mut machine = started(1, sleeper())?;
    same!(machine.next_event(Duration::from_millis(20)), None);
    let mut cpu = vcpu(&mut machine)?;
    same!(cpu.pause()?, Pause::Paused);
    same!(cpu.stop(), Some(Stop::Paused));
    same!(cpu.regs()?.rip, ADDRESS + 2);
    Ok(())
}

fn eight_vcpus_start_stop_and_wait(_: &Lab) -> Outcome {
    let mut machine = started(8, starter())?;
    let mut rung = Vec::new();
    while rung.len() < 8 {
        let event = some(machine.next_event(PATIENCE), "a stop of a vCPU")?;
        let (port, value) = if event.vcpu == 0 {
            (0xe1, 0xb5b)
        } else {
            (BELL, 0xa9)
        };
        let size = if event.vcpu == 0 { 4 } else { 2 };
        same!(event.stop, Stop::Port { port, size, value });
        rung.push(event.vcpu);
        some(machine.vcpu(event.vcpu), "the vCPU that stopped")?.resume(Run::Continue)?;
    }
    rung.sort_unstable();
    same!(rung, (0..8).collect::<Vec<u8>>());
    same!(machine.pause_all()?, [Pause::Paused; 8]);
    same!(machine.pause_all()?, [Pause::WasStopped; 8]);
    Ok(())
}

fn an_nmi_is_confirmed_and_a_second_one_refused(_: &Lab) -> Outcome {
    let mut machine = machine(1, silent())?;
    let mut cpu = vcpu(&mut machine)?;
    let receipt = cpu.inject_nmi()?;
    same!((receipt.before.pending, receipt.after.pending), (0, 1));
    let error = refusal(cpu.inject_nmi())?.to_string();
    holds!(error.contains("already waits"), "{error}");
    same!(cpu.nmi_state()?, receipt.after);
    Ok(())
}

fn the_probe_comes_to_a_verdict_in_time(_: &Lab) -> Outcome {
    let begin = Instant::now();
    let report = probe(&open_kvm()?)?;
    holds!(begin.elapsed() < PATIENCE, "{report}");
    same!(report.is_usable(), report.failed.is_none());
    Ok(())
}
