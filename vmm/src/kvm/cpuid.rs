//! The guest's CPUID: what KVM supports, with each vCPU's place in the topology.

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2,
};
use kvm_ioctls::{Cap, Kvm};
use vmm_sys_util::errno;

/// Leaf 1 ECX: the timer of the local APIC takes a TSC value, and needs no calibration.
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1 ECX: runs under a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1 ECX: Intel's virtualisation, which the guest must not use.
const VMX: u32 = 1 << 5;
/// Leaf 1 EDX: more than one logical CPU in a package.
const HTT: u32 = 1 << 28;
/// Leaf 1 ECX: `IA32_PERF_CAPABILITIES` is there, which tells of writes in full width, PEBS, LBR.
const PDCM: u32 = 1 << 15;
/// Leaf 1 ECX: the layout of the debug store in 64-bit mode...
const DTES64: u32 = 1 << 2;
/// ... and EDX: the debug store, where PEBS and BTS write.
const DS: u32 = 1 << 21;
/// Leaf 7 EDX: last branch records by CPUID.
const ARCH_LBR: u32 = 1 << 19;
/// Leaf 7, subleaf 1, EAX: leaf 0x23, which tells more of counters.
const ARCH_PERFMON_EXT: u32 = 1 << 8;
/// Intel's architectural counters.
const COUNTERS: u32 = 0xa;

/// Leaf 0x8000_0001 ECX: AMD's virtualisation.
const SVM: u32 = 1 << 2;

/// Leaf 0x8000_0001 ECX: AMD's performance counters beyond those of the K7, of the core...
pub(crate) const PERF_CTR_EXT_CORE: u32 = 1 << 23;
/// ... of the northbridge...
const PERF_CTR_EXT_NB: u32 = 1 << 24;
/// ... and of the third-level cache.
const PERF_CTR_EXT_LLC: u32 = 1 << 28;

/// Leaf of what a guest of KVM may use (Documentation/virt/kvm/x86/cpuid.rst).
const KVM_FEATURES: u32 = 0x4000_0001;
/// Its EAX: the guest is told of pages that the host has to fetch (`KVM_FEATURE_ASYNC_PF`, `..._VMEXIT`,
/// `..._INT`).
const ASYNC_PF: u32 = 1 << 4 | 1 << 10 | 1 << 14;
/// The end of an interrupt may be a bit in memory (`KVM_FEATURE_PV_EOI`).
const PV_EOI: u32 = 1 << 6;

/// The leaves that KVM supports, without what depends on more of KVM's state than a checkpoint can have:
///
/// - asynchronous page faults: where a vCPU's MSRs are written back, KVM tells the guest that all pages are there, by an
///   interrupt that nobody made (`kvm_pv_enable_async_pf`, arch/x86/kvm/x86.c);
/// - ends of interrupts without an exit: KVM offers one only as long as it remembers that it delivered the interrupt itself, and
///   not behind `KVM_SET_LAPIC` (`apic_sync_pv_eoi_to_guest`, arch/x86/kvm/lapic.c). A guest that is put back into a handler would end
///   it in another way than before.
pub(crate) fn supported(kvm: &Kvm) -> Result<CpuId, errno::Error> {
    let mut supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    hide_what_is_kvms(&mut supported);
    Ok(supported)
}

fn hide_what_is_kvms(supported: &mut CpuId) {
    let leaves = supported.as_mut_slice().iter_mut();
    for leaf in leaves.filter(|leaf| leaf.function == KVM_FEATURES) {
        leaf.eax &= !(ASYNC_PF | PV_EOI);
    }
}

/// Removes everything that announces performance counters: Intel's leaves and what goes with them,
/// and AMD's extensions. An AMD guest is left with the counters of the K7, which no bit announces.
pub(crate) fn hide_counters(supported: &mut CpuId) {
    for leaf in supported.as_mut_slice() {
        match (leaf.function, leaf.index) {
            (COUNTERS | 0x23 | 0x8000_0022, _) => {
                (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (0, 0, 0, 0);
            }
            (1, _) => {
                leaf.ecx &= !(PDCM | DTES64);
                leaf.edx &= !DS;
            }
            (7, 0) => leaf.edx &= !ARCH_LBR,
            (7, 1) => leaf.eax &= !ARCH_PERFMON_EXT,
            (0x8000_0001, _) => {
                leaf.ecx &= !(PERF_CTR_EXT_CORE | PERF_CTR_EXT_NB | PERF_CTR_EXT_LLC);
            }
            _ => {}
        }
    }
}

/// Announces Intel's architectural counters by `leaf` (EAX, EBX, ECX, EDX), and
/// `IA32_PERF_CAPABILITIES`.
pub(crate) fn with_counters(supported: &CpuId, leaf: [u32; 4]) -> Result<CpuId, errno::Error> {
    let others = supported.as_slice().iter();
    let others = others.filter(|entry| entry.function != COUNTERS).copied();
    let [eax, ebx, ecx, edx] = leaf;
    let counters = kvm_cpuid_entry2 {
        function: COUNTERS,
        eax,
        ebx,
        ecx,
        edx,
        ..Default::default()
    };
    let mut entries: Vec<_> = others.chain([counters]).collect();
    for entry in &mut entries {
        match entry.function {
            // The highest leaf.
            0 => entry.eax = entry.eax.max(COUNTERS),
            1 => entry.ecx |= PDCM,
            _ => {}
        }
    }
    CpuId::from_entries(&entries).map_err(|_| errno::Error::new(libc::E2BIG))
}

/// Creates each vCPU's table: one package of `count` cores with one thread each.
pub(crate) fn tables(kvm: &Kvm, supported: &CpuId, count: u8) -> Result<Vec<CpuId>, errno::Error> {
    let deadline = kvm.check_extension(Cap::TscDeadlineTimer);
    (0..count)
        .map(|id| {
            let topology = Topology {
                id: u32::from(id),
                count: u32::from(count),
            };
            let entries = for_vcpu(supported.as_slice(), topology, deadline);
            CpuId::from_entries(&entries).map_err(|_| errno::Error::new(libc::E2BIG))
        })
        .collect()
}

/// A vCPU's place in its package.
#[derive(Debug, Clone, Copy)]
struct Topology {
    /// Its APIC id.
    id: u32,
    /// vCPUs in the package.
    count: u32,
}

impl Topology {
    /// Bits of an APIC id that number the cores of a package.
    fn core_bits(self) -> u32 {
        self.count.next_power_of_two().trailing_zeros()
    }

    /// The leaves of extended topology: one thread a core, `count` cores a package, and the end
    /// of the list.
    fn leaves(self, function: u32) -> [kvm_cpuid_entry2; 3] {
        const THREADS: u32 = 1;
        const CORES: u32 = 2;
        const END: u32 = 0;
        let level = |index: u32, kind: u32, shift: u32, cpus: u32| kvm_cpuid_entry2 {
            function,
            index,
            flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
            eax: shift,
            ebx: cpus,
            ecx: kind << 8 | index,
            edx: self.id,
            ..Default::default()
        };
        [
            level(0, THREADS, 0, 1),
            level(1, CORES, self.core_bits(), self.count),
            level(2, END, 0, 0),
        ]
    }
}

fn for_vcpu(
    supported: &[kvm_cpuid_entry2],
    topology: Topology,
    deadline: bool,
) -> Vec<kvm_cpuid_entry2> {
    let mut entries: Vec<_> = supported
        .iter()
        // Extended topology is rewritten; AMD's newer form of it is left out.
        .filter(|entry| !matches!(entry.function, 0xb | 0x1f | 0x8000_0026))
        .copied()
        .collect();
    for entry in &mut entries {
        set_topology(entry, topology, deadline);
    }
    let highest = supported
        .iter()
        .find(|entry| entry.function == 0)
        .map_or(0, |entry| entry.eax);
    for function in [0xb, 0x1f]
        .into_iter()
        .filter(|function| *function <= highest)
    {
        entries.extend(topology.leaves(function));
    }
    entries
}

fn set_topology(entry: &mut kvm_cpuid_entry2, topology: Topology, deadline: bool) {
    let Topology { id, count } = topology;
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0xffff | count << 16 | id << 24;
            entry.ecx = entry.ecx & !VMX | HYPERVISOR;
            if deadline {
                entry.ecx |= TSC_DEADLINE;
            }
            entry.edx = if count > 1 {
                entry.edx | HTT
            } else {
                entry.edx & !HTT
            };
        }
        // Intel's caches: cores in the package, and how many share the cache. Only the third
        // level is shared.
        4 if entry.eax & 0x1f != 0 => {
            let level = entry.eax >> 5 & 7;
            let sharing = if level >= 3 { count - 1 } else { 0 };
            entry.eax = entry.eax & 0x3fff | sharing << 14 | (count - 1) << 26;
        }
        0x8000_0001 => entry.ecx &= !SVM,
        0x8000_0008 => entry.ecx = entry.ecx & !0xf0ff | (count - 1) | topology.core_bits() << 12,
        // AMD's caches, likewise.
        0x8000_001d if entry.eax & 0x1f != 0 => {
            let level = entry.eax >> 5 & 7;
            let sharing = if level >= 3 { count - 1 } else { 0 };
            entry.eax = entry.eax & 0x3fff | sharing << 14;
        }
        // APIC id; core id, one thread a core; node 0 of 1.
        0x8000_001e => {
            entry.eax = id;
            entry.ebx = id;
            entry.ecx = 0;
        }
        _ => {}
    }
}

/// Whether this machine's CPU is emulated by QEMU's TCG, by the hypervisor leaf of CPUID.
#[must_use]
pub fn on_tcg() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    [leaf.ebx, leaf.ecx, leaf.edx]
        .map(u32::to_le_bytes)
        .concat()
        == b"TCGTCGTCGTCG"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, eax: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 {
            function,
            eax,
            ..Default::default()
        }
    }

    #[test]
    fn what_depends_on_kvms_own_state_is_hidden_and_nothing_else() {
        let leaves = [leaf(KVM_FEATURES, u32::MAX), leaf(1, u32::MAX)];
        let mut table = CpuId::from_entries(&leaves).unwrap();
        hide_what_is_kvms(&mut table);
        let told: Vec<u32> = table.as_slice().iter().map(|it| it.eax).collect();
        assert_eq!(told, [0xffff_bbaf, u32::MAX]);
    }

    #[test]
    fn nothing_tells_of_counters_that_are_hidden() {
        let mut leaf_a = leaf(0xa, 0x0730_0405);
        leaf_a.edx = 0x603;
        let mut extended = leaf(0x8000_0001, 7);
        extended.ecx = u32::MAX;
        let mut table = CpuId::from_entries(&[leaf_a, extended, leaf(0x8000_0022, 3)]).unwrap();
        hide_counters(&mut table);
        let [a, extended, v2] = table.as_slice() else {
            panic!("a leaf is lost");
        };
        assert_eq!((a.eax, a.edx, v2.eax), (0, 0, 0));
        assert_eq!((extended.eax, extended.ecx), (7, 0xee7f_ffff));
    }

    #[test]
    fn nothing_tells_of_what_goes_with_intels_counters() {
        let all = |function, index| kvm_cpuid_entry2 {
            index,
            eax: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..leaf(function, 0)
        };
        let leaves = [all(1, 0), all(7, 0), all(7, 1), all(0x23, 1)];
        let mut table = CpuId::from_entries(&leaves).unwrap();
        hide_counters(&mut table);
        let [features, extended, more, counters] = table.as_slice() else {
            panic!("a leaf is lost");
        };
        assert_eq!((features.ecx, features.edx), (0xffff_7ffb, 0xffdf_ffff));
        assert_eq!((extended.eax, extended.edx), (u32::MAX, 0xfff7_ffff));
        assert_eq!((more.eax, more.edx), (0xffff_feff, u32::MAX));
        assert_eq!((counters.eax, counters.ecx, counters.edx), (0, 0, 0));
    }

    #[test]
    fn architectural_counters_are_announced_whether_or_not_kvm_has_the_leaf() {
        let without = [leaf(0, 5), leaf(1, 0)];
        let with = [leaf(0, 0xd), leaf(1, 0), leaf(0xa, 0)];
        for (before, highest) in [(without.as_slice(), 0xa), (with.as_slice(), 0xd)] {
            let before = CpuId::from_entries(before).unwrap();
            let after = with_counters(&before, [1, 2, 3, 4]).unwrap();
            let after = after.as_slice();
            assert_eq!(after.len(), 3);
            let find = |function| after.iter().find(|it| it.function == function).unwrap();
            assert_eq!((find(0).eax, find(1).ecx), (highest, 1 << 15));
            let it = find(0xa);
            assert_eq!([it.eax, it.ebx, it.ecx, it.edx], [1, 2, 3, 4]);
        }
    }

    #[test]
    fn every_vcpu_has_its_place() {
        let supported = [
            leaf(0, 0xd),
            leaf(1, 0),
            leaf(0xb, 99),
            leaf(0x8000_0008, 0),
        ];
        let entries = for_vcpu(&supported, Topology { id: 2, count: 3 }, true);
        let find = |function, index| {
            *entries
                .iter()
                .find(|e| e.function == function && e.index == index)
                .unwrap()
        };
        assert_eq!(find(1, 0).ebx, 3 << 16 | 2 << 24);
        assert_eq!(find(1, 0).edx & HTT, HTT);
        assert_ne!(find(1, 0).ecx & TSC_DEADLINE, 0);
        assert_eq!(find(0x8000_0008, 0).ecx, 2 | 2 << 12);
        assert_eq!(
            (find(0xb, 1).eax, find(0xb, 1).ebx, find(0xb, 1).edx),
            (2, 3, 2)
        );
        assert!(
            !entries.iter().any(|e| e.function == 0x1f),
            "beyond the highest leaf"
        );
    }
}
