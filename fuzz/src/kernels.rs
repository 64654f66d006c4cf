//! Images of kernels, and the packages that they come in.

use unwindlab_guest_kernel::{Lines, Symbols, Types, deb as packages, image as images};
use unwindlab_oracle::invariant::finding::{Findings, Presence, Resolver};

use crate::take::Input;

/// Most bytes that are unpacked of a small input.
const UNPACKED: u64 = 4 << 20;

/// A bzImage or vmlinux: unpacked, with its symbols, lines, release and configuration.
pub(crate) fn image(data: &[u8]) {
    // A few bytes can claim, and compress, 2 GiB, which is right.
    let claims = data
        .last_chunk::<4>()
        .map_or(0, |it| u32::from_le_bytes(*it));
    let is_elf = data.starts_with(b"\x7fELF");
    if !is_elf && u64::from(claims) > UNPACKED {
        return;
    }
    let Ok(vmlinux) = images::vmlinux(data) else {
        return;
    };
    let _ = (
        images::has_pvh_entry(&vmlinux),
        images::release(&vmlinux),
        images::config(&vmlinux),
    );
    let kept = images::without_sections(&vmlinux);
    assert!(kept.len() <= vmlinux.len());
    if let Ok(symbols) = Symbols::from_elf(&vmlinux) {
        for (address, _, name) in symbols.iter().take(64) {
            assert!(symbols.address(name).is_some(), "{name} is not found");
            let _ = (symbols.size(name), symbols.percpu_offset(name));
            let found = symbols.resolve(address);
            assert!(found.is_none_or(|(_, offset)| offset <= address));
        }
        let _ = (symbols.similar("schedule"), symbols.current_task_offset());
    }
    if let Some(lines) = Lines::from_elf(&vmlinux) {
        for file in lines.files().iter().take(16) {
            for line in lines.with_code(file).into_iter().take(16) {
                assert_ne!(line, 0);
            }
        }
        let _ = lines.at(0xffff_ffff_8100_0000);
    }
}

/// A kernel's type information.
pub(crate) fn types(data: &[u8]) {
    let Ok(types) = Types::parse(data) else {
        return;
    };
    for path in ["pid", "unwind_info.id", "thread.sp", "a.b.c", ""] {
        let _ = types.member("task_struct", path);
    }
}

/// Where the text of [`Text`] begins.
const BASE: u64 = 0xffff_ffff_8100_0000;

/// A kernel of which every byte is the input's: code, tables of the unwinder and where symbols point.
struct Text<'d> {
    /// Where a symbol points: one of these, chosen by its name.
    offsets: &'d [u8],
    text: &'d [u8],
}

impl Text<'_> {
    fn offset(&self, name: &str) -> u64 {
        let chosen = name
            .bytes()
            .fold(0_usize, |sum, byte| sum * 31 % 251 + usize::from(byte));
        let many = self.offsets.len().max(1);
        let of = self.offsets.get(chosen % many).copied().unwrap_or_default();
        u64::from(of) * 16
    }
}

impl Resolver for Text<'_> {
    fn function(&self, address: u64) -> Option<String> {
        (address >= BASE).then(|| "do_syscall_64".to_owned())
    }

    fn has(&self, _: &str) -> bool {
        true
    }

    fn address(&self, name: &str) -> Option<u64> {
        Some(BASE + self.offset(name))
    }

    fn code(&self, function: &str) -> Option<(u64, Vec<u8>)> {
        let start = self.address(function)?;
        Some((start, self.text(start, 512)?))
    }

    fn text(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let at = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let rest = self.text.get(at..)?;
        Some(rest.get(..length).unwrap_or(rest).to_vec())
    }

    fn current_task(&self) -> Option<u64> {
        Some(self.offset("current_task"))
    }
}

/// The code and the tables in which findings are looked for.
pub(crate) fn findings(data: &[u8]) {
    let mut input = Input(data);
    let kernel = Text {
        offsets: input.piece(),
        text: input.0,
    };
    let Ok(list) = Findings::embedded() else {
        unreachable!("well-formed, as a test holds")
    };
    for (_, presence) in list.in_image(&kernel) {
        if let Presence::Windows(windows) = presence {
            assert!(windows.iter().all(|it| !it.instructions.is_empty()));
        }
    }
}

/// A package: `ar`, its compression and the `tar` in it.
pub(crate) fn deb(data: &[u8]) {
    for (path, bytes) in packages::files(data, UNPACKED).unwrap_or_default() {
        assert!(path.is_relative() && bytes <= UNPACKED);
        let up = path
            .components()
            .any(|it| it == std::path::Component::ParentDir);
        assert!(!up, "{} leads out", path.display());
    }
}
