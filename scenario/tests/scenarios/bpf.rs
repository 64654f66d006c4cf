//! A BPF client on a kernel that has no BPF programs, or not the function that they call.

use super::{Kernel, MINIMAL, load};
use unwindlab_scenario::{ResolveError, UnsupportedKernel, resolve};

#[test]
fn a_kernel_without_bpf_is_skipped_before_its_functions_are_looked_for() {
    let text = format!(
        "{MINIMAL}bpf: {{ stack: task-work }}\ninject:\n  - nmi: {{ at: {{ kernel: bpf_prog_put }} }}\n"
    );
    let loaded = load(&text).unwrap();
    let resolved = |kernel: &Kernel| resolve("x.yaml", &loaded, kernel, "hash");
    let mut kernel = Kernel::new();
    let error = resolved(&kernel).unwrap_err();
    let lacks = ResolveError::Unsupported(UnsupportedKernel::Bpf);
    assert_eq!(error.to_string(), lacks.to_string());
    let place = vec![(0xffff_ffff_8500_0000, 8)];
    kernel.0.insert("bpf_prog_put", place.clone());
    kernel.0.insert("__start_BTF", place.clone());
    let error = resolved(&kernel).unwrap_err();
    assert!(error.to_string().contains("no function `bpf_task_work_"));
    kernel.0.insert("bpf_task_work_schedule_resume", place);
    let plan = resolved(&kernel).unwrap();
    assert_eq!(plan.guest.bpf.unwrap().schedule, Some(7));
    kernel.0.insert("stripped", Vec::new());
    let error = resolved(&kernel).unwrap_err();
    assert!(matches!(error, ResolveError::Unsupported(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("can call the kernel's `bpf_task_work_")
    );
}
