//! A headless Chromium, over a pipe: pages, keys, what they log.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser with one page, and its DevTools protocol.
pub struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    /// What the page logged, threw, or was denied by its policy.
    pub complaints: Vec<String>,
    /// Addresses that it asked for.
    pub requests: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts it. Chromium reads commands from descriptor 3 and answers on 4.
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let script = "exec chromium --headless --no-sandbox --disable-gpu --no-first-run \
                      --disable-background-networking --user-data-dir=\"$0\" --remote-debugging-pipe \
                      3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut process = Command::new("sh")
            .args(["-c", script])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Self {
            to: process.stdin.take().unwrap(),
            from: BufReader::new(process.stdout.take().unwrap()),
            process,
            session: None,
            last: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a file of this machine, without a network, and waits until it is drawn.
    pub fn open(&mut self, file: &Path) {
        let offline =
            json!({"offline": true, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0});
        self.ask("Network.emulateNetworkConditions", offline);
        let url = format!("file://{}", file.canonicalize().unwrap().display());
        self.ask("Page.navigate", json!({"url": url}));
        let drawn =
            "document.readyState === 'complete' && document.querySelector('header') !== null";
        for _ in 0..500 {
            if self.eval(drawn) == json!(true) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the page was not drawn: {:?}", self.complaints);
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", asked);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Presses a key: a character, or the name of a key.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            " " => 32,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        match key {
            "Enter" => down["text"] = json!("\r"),
            key if key.chars().count() == 1 => down["text"] = json!(key),
            _ => {}
        }
        self.ask("Input.dispatchKeyEvent", down);
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.ask("Input.dispatchKeyEvent", up);
    }

    /// Prefers `light` or `dark` from now on.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.ask("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// Asks, and takes what is told meanwhile.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(&[0]).unwrap();
        loop {
            let mut line = Vec::new();
            self.from.read_until(0, &mut line).unwrap();
            assert_eq!(
                line.pop(),
                Some(0),
                "chromium ended before it answered {method}"
            );
            let message: Value = serde_json::from_slice(&line).unwrap();
            if message["id"] == json!(self.last) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            match message["method"].as_str() {
                Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.complaints.push(message["params"].to_string());
                }
                Some("Network.requestWillBeSent") => {
                    let url = message["params"]["request"]["url"].as_str();
                    self.requests.extend(url.map(str::to_owned));
                }
                _ => {}
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
