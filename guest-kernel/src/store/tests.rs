//! What the module above promises.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use super::*;
use crate::Silent;

/// Serves the files of a folder to whoever connects, until the test ends. Returns its URL.
pub(crate) fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            thread::spawn(move || answer(stream, &folder));
        }
    });
    format!("http://{address}")
}

/// One request, of a connection that ends with the answer.
fn answer(mut stream: TcpStream, folder: &Path) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    lines.find(|line| line.as_ref().is_ok_and(String::is_empty));
    let name = first.split(' ').nth(1).unwrap().trim_start_matches('/');
    let (status, body) = match fs::read(folder.join(name)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client that has enough closes the connection.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(&body));
}

fn wanted(name: &str, most: u64) -> Wanted<'_> {
    Wanted {
        name,
        most,
        sha256: None,
    }
}

#[test]
fn a_store_is_a_folder_or_a_url() {
    let url = |text: &str| match Store::parse(text) {
        Ok(Store::Url(url)) => url.shown(),
        other => panic!("{other:?}"),
    };
    assert_eq!(url("http://a.example/kernels/"), "http://a.example/kernels");
    assert_eq!(url("https://me:secret@a.example/k"), "https://a.example/k");
    let folder = |path: &str| Store::Folder(PathBuf::from(path));
    assert_eq!(
        Store::parse("/srv/kernels").unwrap(),
        folder("/srv/kernels")
    );
    for text in [
        "ftp://a.example",
        "http://",
        "https://a.example/k?token=1",
        "http://a b",
    ] {
        let error = Store::parse(text).unwrap_err().to_string();
        assert!(
            error.ends_with(text) && error.starts_with(STORE_VARIABLE),
            "{error}"
        );
    }
}

#[test]
fn what_was_put_is_fetched_from_the_folder_and_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    let store = Store::Folder(place.clone());
    store.put("kernel-1/vmlinux", b"text").unwrap();
    store.put("kernel-1/vmlinux", b"text").unwrap();
    assert_eq!(fs::read_dir(place.join("kernel-1")).unwrap().count(), 1);
    let url = Store::parse(&serve(place)).unwrap();
    url.put("kernel-1/other", b"nothing is put behind a URL")
        .unwrap();
    let into = folder.path().join("into");
    for store in [store, url] {
        assert!(
            store
                .fetch(wanted("kernel-1/vmlinux", 4), &into, &Silent)
                .unwrap()
        );
        assert_eq!(fs::read(&into).unwrap(), b"text");
        fs::remove_file(&into).unwrap();
        assert!(
            !store
                .fetch(wanted("kernel-1/other", 4), &into, &Silent)
                .unwrap()
        );
        let error = store.fetch(wanted("kernel-1/vmlinux", 3), &into, &Silent);
        assert!(error.is_err(), "{} has too large a file", store.shown());
        // What apt began stays under another name.
        let _ = fs::remove_file(&into);
    }
}

#[test]
fn a_server_that_does_not_answer_is_an_error() {
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://user:secret@{}", listener.local_addr().unwrap())
    };
    let store = Store::parse(&url).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = store.fetch(wanted("a.json", 10), &folder.path().join("into"), &Silent);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("/a.json: ") && !error.contains("secret"),
        "{error}"
    );
}

#[test]
fn a_store_that_is_a_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::Folder(file).put("a.json", b"text").unwrap_err();
    assert!(error.to_string().contains("file/a.json: "), "{error}");
    let error = Store::Folder(folder.path().join("file/in")).put("a.json", b"text");
    assert!(error.is_err());
}
