//! With the real archive: `cargo test -p unwindlab-guest-kernel -- --ignored`. Takes half a
//! minute and 100 MB of downloads.

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use unwindlab_guest_kernel::{
        Cache, KernelSpec, Silent, Symbols, fetch, image, outer_kernel, path, qemu,
    };

    #[test]
    #[ignore = "needs Debian's archive"]
    fn an_empty_cache_fills_and_is_not_asked_twice() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().to_path_buf())).unwrap();
        let kernel = fetch(&KernelSpec::stock(), &cache, &Silent).unwrap();
        let outer = outer_kernel(&cache, &Silent).unwrap();
        let emulator = qemu(&cache, &Silent).unwrap();

        assert!(kernel.release.starts_with("7."), "{kernel:?}");
        let symbols = Symbols::load(&kernel.symbols).unwrap();
        assert!(symbols.address("unwind_deferred_request").is_some());
        assert!(symbols.current_task_offset().is_some());
        let vmlinux = std::fs::read(&outer.vmlinux).unwrap();
        assert!(image::has_pvh_entry(&vmlinux));
        assert_eq!(image::release(&vmlinux), Some(outer.release.as_str()));
        let last = outer.modules.last().and_then(|module| module.file_name());
        assert_eq!(last, Some("kvm_amd.ko".as_ref()));
        let help = emulator
            .command()
            .args(["-machine", "help"])
            .stdout(Stdio::null())
            .status();
        assert!(help.unwrap().success());

        let start = Instant::now();
        assert_eq!(
            fetch(&KernelSpec::stock(), &cache, &Silent).unwrap(),
            kernel
        );
        assert_eq!(outer_kernel(&cache, &Silent).unwrap(), outer);
        assert_eq!(path(&KernelSpec::stock(), &cache).unwrap(), Some(kernel));
        // Not enough for a single call of apt with these lists.
        assert!(start.elapsed() < Duration::from_millis(500));
    }
}
