//! The browser on a site: addresses on loopback, clicks where a person clicks, and pages that change by themselves.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Browser, LIMIT};

/// How often a page is asked whether it has changed.
const PACE: Duration = Duration::from_millis(100);

impl Browser {
    /// Opens an address in a window of this width in pixels.
    ///
    /// # Panics
    /// If the browser does not start, or does not load the address.
    pub fn at(url: &str, width: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let blank = folder.path().join("blank.html");
        fs::write(&blank, "<!doctype html><title>blank</title>").expect("a file");
        let mut browser = Self::open(&blank, "", width);
        browser.visit(url);
        browser
    }

    /// Loads an address, also one that the server refuses with a page.
    ///
    /// # Panics
    /// If it does not load.
    pub fn visit(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": url}));
        self.await_load();
    }

    /// Clicks with the mouse on the first element that a selector names: on its first line, if it has several. and waits for the page that it leads to.
    ///
    /// # Panics
    /// If there is no such element, another one lies over it, or it leads nowhere.
    pub fn follow(&mut self, selector: &str) {
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        self.click(selector);
        self.await_load();
    }

    /// Clicks with the mouse on the first element that a selector names: on its first line, if it has several.
    ///
    /// # Panics
    /// If there is no such element, or another one lies over it.
    pub fn click(&mut self, selector: &str) {
        let place = self.says(&format!(
            "(function(){{var e=document.querySelector({selector});if(!e)return null;e.scrollIntoView({{block:'center'}});\
             var r=e.getClientRects()[0],x=r.left+r.width/2,y=r.top+r.height/2,top=document.elementFromPoint(x,y);\
             return {{x:x,y:y,free:e.contains(top)||top.contains(e)}}}})()",
            selector = json!(selector)
        ));
        assert_eq!(place["free"], true, "{selector} can be clicked: {place}");
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({
                "type": kind, "x": place["x"], "y": place["y"], "button": button, "buttons": buttons, "clickCount": 1,
            });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Waits until an expression in the page is true, also beyond a reload.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn until(&mut self, expression: &str) {
        let begin = Instant::now();
        loop {
            let asked = json!({"expression": expression, "returnByValue": true});
            // Why its errors count as false: while a page is being loaded it has no elements, or is another one.
            if self.ask("Runtime.evaluate", asked)["result"]["result"]["value"] == true {
                return;
            }
            let page = || "document.body.innerText";
            assert!(begin.elapsed() < LIMIT, "{expression}: {}", self.says(page()));
            std::thread::sleep(PACE);
        }
    }

    /// Returns the page's errors, and its requests to other places than this site.
    pub fn complaints_on(&mut self, site: &str) -> Vec<String> {
        let of_site = |complaint: &String| {
            let event: Value = serde_json::from_str(complaint).unwrap_or_default();
            event["request"]["url"].as_str().is_some_and(|url| url.starts_with(site))
        };
        self.complaints().into_iter().filter(|complaint| !of_site(complaint)).collect()
    }

    /// Writes what the window shows to a file, as PNG.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn photograph(&mut self, file: &Path) {
        let taken = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let data = taken["data"].as_str().expect("a picture");
        fs::write(file, decode(data)).expect("a file");
    }

    fn await_load(&mut self) {
        let begin = Instant::now();
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let message = self.hear(begin);
            self.events.push_back(message);
        }
    }
}

/// Decodes Base64.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let (mut out, mut bits, mut count) = (Vec::new(), 0_usize, 0);
    for digit in digits {
        bits = bits << 6 | digit;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}
