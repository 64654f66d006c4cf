//! Places named by a line of the source.

use super::{Kernel, MINIMAL, load};
use unwindlab_engine::plan::{CodePlace, TriggerPlan};
use unwindlab_guest_kernel::lines::LineError;
use unwindlab_scenario::{ResolveError, UnsupportedKernel, resolve};

fn at(place: &str) -> String {
    format!("{MINIMAL}inject:\n  - nmi: {{ at: {{ kernel: \"{place}\" }} }}\n")
}

#[test]
fn a_line_is_an_address() {
    let scheduled = "schedule:\n  points:\n    - { vcpu: 0, at: { kernel: \"sys.c:1\" } }\n    \
                     - { vcpu: 1, at: { kernel: __x64_sys_getppid } }\n";
    let two = format!("{MINIMAL}machine: {{ vcpus: 2 }}\n{scheduled}");
    for text in [at("sys.c:1"), two] {
        let plan = resolve("x.yaml", &load(&text).unwrap(), &Kernel::new(), "hash").unwrap();
        let TriggerPlan::Arrival(arrival) = &plan.injections[0].trigger else {
            panic!("{:?}", plan.injections);
        };
        let address = 0xffff_ffff_8200_0007;
        assert_eq!(arrival.place, CodePlace::Kernel { address });
    }
}

#[test]
fn a_line_that_is_no_one_place_is_refused() {
    for (place, expected) in [
        (
            "sys.c:2",
            "x.yaml:7:16: sys.c:2 is in 2 places, expected one of __x64_sys_getppid+0x4, \
             __x64_sys_getppid+0x10",
        ),
        (
            "sys.c:3",
            &format!("x.yaml:7:16: {}", LineError::NoFile("sys.c".to_owned())),
        ),
    ] {
        let found = resolve("x.yaml", &load(&at(place)).unwrap(), &Kernel::new(), "hash");
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_kernel_without_debug_information_is_a_skip_that_says_what_to_do() {
    let mut kernel = Kernel::new();
    kernel.0.insert("stripped", Vec::new());
    let scenario = load(&at("sys.c:1")).unwrap();
    let found = resolve("x.yaml", &scenario, &kernel, "hash").unwrap_err();
    assert!(matches!(
        found,
        ResolveError::Unsupported(UnsupportedKernel::Lines)
    ));
    assert!(found.to_string().contains("--config dwarf"), "{found}");
    // A scenario that names no line runs on such a kernel.
    let scenario = load(&at("__x64_sys_getppid")).unwrap();
    assert!(resolve("x.yaml", &scenario, &kernel, "hash").is_ok());
}

#[test]
fn a_misspelt_symbol_is_an_error_whatever_else_the_kernel_lacks() {
    let mut kernel = Kernel::new();
    kernel.0.insert("stripped", Vec::new());
    let text = at("sys.c:1") + "  - nmi: { at: { kernel: getpid } }\n";
    let found = resolve("x.yaml", &load(&text).unwrap(), &kernel, "hash").unwrap_err();
    let told = found.to_string();
    assert!(matches!(found, ResolveError::Scenario(_)), "{told}");
    assert!(
        told.starts_with("x.yaml:8:16: the kernel has no symbol `getpid`"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
}
