//! Prints whether this machine's KVM can run an unmodified kernel.

use std::error::Error;

use unwindlab_vmm::open_kvm;
use unwindlab_vmm::probe::probe;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", probe(&open_kvm()?)?);
    Ok(())
}
