//! What the module above promises.

use proptest::prelude::*;

use super::*;

/// A package whose data archive holds these: name, link target if it is one, content.
fn deb(member: &str, items: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, link, content) in items {
        let mut header = tar::Header::new_gnu();
        // Written into the header itself: the library refuses bad names, as it should.
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o755);
        header.set_size(u64::try_from(content.len()).unwrap());
        if let Some(target) = link {
            header.set_entry_type(tar::EntryType::Symlink);
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        } else {
            header.set_entry_type(tar::EntryType::Regular);
        }
        header.set_cksum();
        archive.append(&header, *content).unwrap();
    }
    let data = archive.into_inner().unwrap();
    let data = match member {
        "data.tar.zst" => ruzstd::encoding::compress_to_vec(
            &data[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        ),
        "data.tar.xz" => {
            let mut out = Vec::new();
            liblzma::read::XzEncoder::new(&data[..], 1)
                .read_to_end(&mut out)
                .unwrap();
            out
        }
        "data.tar.gz" => {
            let mut out = Vec::new();
            flate2::read::GzEncoder::new(&data[..], flate2::Compression::fast())
                .read_to_end(&mut out)
                .unwrap();
            out
        }
        _ => data,
    };
    let mut out = ar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let header = ar::Header::new(
            name.as_bytes().to_vec(),
            u64::try_from(content.len()).unwrap(),
        );
        out.append(&header, content).unwrap();
    };
    add("debian-binary", b"2.0\n");
    add("control.tar.xz", b"not looked at");
    add(member, &data);
    out.into_inner().unwrap()
}

fn unpacked(deb: &[u8]) -> (tempfile::TempDir, Result<(), DebError>) {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("p.deb");
    fs::write(&package, deb).unwrap();
    let into = folder.path().join("in");
    fs::create_dir(&into).unwrap();
    let result = unpack(&package, &into, |path| Some(path.to_path_buf()));
    (folder, result)
}

#[test]
fn unpacks_every_compression() {
    for member in ["data.tar", "data.tar.xz", "data.tar.zst", "data.tar.gz"] {
        let (folder, result) = unpacked(&deb(
            member,
            &[
                ("./usr/lib/a.so.1.2", None, b"library"),
                ("./usr/lib/a.so.1", Some("a.so.1.2"), b""),
            ],
        ));
        result.unwrap();
        let lib = folder.path().join("in/usr/lib");
        assert_eq!(fs::read(lib.join("a.so.1")).unwrap(), b"library");
        let mode = fs::metadata(lib.join("a.so.1.2"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
    }
}

#[test]
fn nothing_leaves_the_folder() {
    let (folder, result) = unpacked(&deb(
        "data.tar.xz",
        &[
            ("../evil", None, b"x"),
            ("./a/../../evil", None, b"x"),
            ("/evil", None, b"x"),
            ("./up", Some(".."), b""),
            ("./out", Some("/etc/passwd"), b""),
            ("./deep", Some("a/b"), b""),
        ],
    ));
    result.unwrap();
    assert_eq!(fs::read_dir(folder.path().join("in")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_file_is_not_written_through_a_link() {
    let (folder, result) = unpacked(&deb(
        "data.tar.xz",
        &[
            ("./victim", None, b"old"),
            ("./link", Some("victim"), b""),
            ("./link", None, b"new"),
        ],
    ));
    assert!(matches!(result, Err(DebError::Cache(_))));
    assert_eq!(fs::read(folder.path().join("in/victim")).unwrap(), b"old");
}

#[test]
fn only_what_is_wanted_where_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("p.deb");
    let items: [(&str, Option<&str>, &[u8]); 2] =
        [("./boot/vmlinuz-7", None, b"k"), ("./doc/x", None, b"d")];
    fs::write(&package, deb("data.tar.xz", &items)).unwrap();
    let into = folder.path().join("in");
    unpack(&package, &into, |path| {
        path.starts_with("boot").then(|| PathBuf::from("vmlinuz"))
    })
    .unwrap();
    assert_eq!(fs::read(into.join("vmlinuz")).unwrap(), b"k");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
}

#[test]
fn says_what_is_wrong() {
    let (_folder, result) = unpacked(b"no archive");
    assert!(matches!(result, Err(DebError::Archive { .. })));
    let (_folder, result) = unpacked(&deb("data.tar.bz2", &[]));
    assert!(matches!(result, Err(DebError::NoData(_))));
    let whole = deb("data.tar.xz", &[("./a", None, &[7; 10_000])]);
    let (_folder, result) = unpacked(&whole[..whole.len() - 40]);
    assert!(matches!(result, Err(DebError::Archive { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_packages_never_panic(
        changes in prop::collection::vec((0..2048_usize, any::<u8>()), 1..8),
        member in prop::sample::select(vec!["data.tar", "data.tar.xz", "data.tar.zst"]),
    ) {
        let mut package = deb(member, &[("./a/b", None, b"content"), ("./l", Some("b"), b"")]);
        for (at, byte) in changes {
            if let Some(place) = package.get_mut(at) {
                *place = byte;
            }
        }
        let (folder, _result) = unpacked(&package);
        prop_assert!(fs::read_dir(folder.path()).unwrap().count() == 2);
    }
}

/// The crate `ar` panics here: it takes such a name for a place in a table.
#[test]
fn a_name_in_a_table_that_is_not_there() {
    let mut package = b"!<arch>\n".to_vec();
    package.extend(format!("{:<48}{:<10}`\n", "/900000000", 0).bytes());
    assert!(matches!(files(&package, 1), Err(DebError::NoData(_))));
    package.extend(b"cut");
    assert!(matches!(files(&package, 1), Err(DebError::Archive { .. })));
}
