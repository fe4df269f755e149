//! Code about code: the rules that the compiler does not know. Each ban prints its reason.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines a file may have before its tests.
const FILE_LINES_MAX: usize = 520;

/// A word, the files that may say it, and why nobody else may.
struct Ban {
    word: &'static str,
    allowed: &'static [&'static str],
    reason: &'static str,
}

/// Words banned from rooms named `core/`.
const PURE: &[(&str, &str)] = &[
    (".await", "core/ is driven, it does not wait"),
    ("tokio::", "core/ knows no runtime"),
    ("quinn::", "core/ knows no socket"),
    ("Instant::now", "time is an input"),
    ("SystemTime", "time is an input"),
    ("mpsc", "core/ gives effects back, it does not send"),
    ("crate::net", "the arrow points from net to core"),
    ("HashMap", "iteration order must be reproducible"),
    ("HashSet", "iteration order must be reproducible"),
];

/// Words banned everywhere else.
const BANS: &[Ban] = &[
    Ban {
        word: "unsafe ",
        allowed: &["worker/src/train/blas.rs"],
        reason: "one call into OpenBLAS is all the unsafe there is",
    },
    Ban {
        word: "bincode::",
        allowed: &["common/src/wire/message.rs"],
        reason: "bincode is unmaintained; replacing it must be one commit",
    },
    Ban {
        word: "DashMap",
        allowed: &["server/src/directory.rs"],
        reason: "a guard is a lock and must not leave its file",
    },
    Ban { word: "unbounded_channel", allowed: &[], reason: "every queue has a bound" },
    Ban { word: "todo!(", allowed: &[], reason: "a stub is a defect" },
    Ban { word: "unimplemented!(", allowed: &[], reason: "a stub is a defect" },
    Ban { word: "#[ignore", allowed: &[], reason: "a skipped test is one that nobody counts" },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every Rust file of ours with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["common", "server", "worker", "coordinator", "cli", "tests"] {
        walk(&root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "only {} files found: the walk is broken", found.len());
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The lines that are code, with their numbers: comments and this file's own word lists are not.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The lines before the tests of a file.
fn product(text: &str) -> usize {
    text.lines()
        .position(|line| line.trim() == "#[cfg(test)]")
        .unwrap_or_else(|| text.lines().count())
}

fn is_test_file(name: &str) -> bool {
    name.starts_with("tests/") || name.ends_with("tests.rs") || name.contains("/tests/")
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn core_rooms_are_pure() {
    let mut faults = Vec::new();
    let mut rooms = 0;
    for (name, text) in sources() {
        if !name.contains("/src/core/") || is_test_file(&name) {
            continue;
        }
        rooms += 1;
        let end = product(&text);
        for (number, line) in code(&text).take_while(|(number, _)| *number <= end) {
            for (word, reason) in PURE {
                if line.contains(word) {
                    faults.push(format!("{name}:{number}: {word:?}: {reason}"));
                }
            }
        }
    }
    assert!(rooms > 5, "only {rooms} files in core/ rooms: the rule looks at nothing");
    report(&faults);
}

#[test]
fn banned_words_stay_where_they_are_allowed() {
    let mut faults = Vec::new();
    for (name, text) in sources() {
        if name == "tests/it/tidy.rs" {
            continue;
        }
        for (number, line) in code(&text) {
            for ban in BANS {
                if line.contains(ban.word) && !ban.allowed.contains(&name.as_str()) {
                    faults.push(format!("{name}:{number}: {:?}: {}", ban.word, ban.reason));
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn files_stay_small() {
    let long = sources().into_iter().filter(|(name, _)| !is_test_file(name));
    let faults: Vec<_> = long
        .filter(|(_, text)| product(text) > FILE_LINES_MAX)
        .map(|(name, text)| format!("{name}: {} lines, at most {FILE_LINES_MAX}", product(&text)))
        .collect();
    report(&faults);
}

#[test]
fn tests_never_sleep() {
    let mut faults = Vec::new();
    for (name, text) in sources() {
        if name == "tests/src/clock.rs" || name == "tests/it/tidy.rs" {
            continue;
        }
        let start = if is_test_file(&name) { 0 } else { product(&text) };
        for (number, line) in code(&text).filter(|(number, _)| *number > start) {
            if line.contains("sleep(") {
                faults.push(format!("{name}:{number}: wait for a condition (tests/src/clock.rs)"));
            }
        }
    }
    report(&faults);
}

#[test]
fn the_map_names_only_rooms_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let ticked = text.split('`').skip(1).step_by(2);
    let roots = ["common/", "server/", "worker/", "coordinator/", "cli/", "tests/", "docs/"];
    let mut looked = 0;
    for path in ticked.filter(|path| roots.iter().any(|folder| path.starts_with(folder))) {
        for one in expand(path) {
            looked += 1;
            assert!(root().join(&one).exists(), "ARCHITECTURE.md names {one}, which is not there");
        }
    }
    assert!(looked > 20, "only {looked} paths found: the test looks at nothing");
}

/// `a/{b,c}` as `a/b` and `a/c`, with `.rs` where that is the file. A closing `.rs` may follow.
fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (names, after) = rest.split_once('}').unwrap();
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

#[test]
fn the_protocol_page_lists_every_message() {
    let source = fs::read_to_string(root().join("common/src/wire/control.rs")).unwrap();
    let page = fs::read_to_string(root().join("docs/PROTOCOL.md")).unwrap();
    let enums = ["FromWorker", "ToWorker", "FromServer", "ToServer", "FromOperator", "ToOperator"];
    for name in enums {
        let body = source.split(&format!("pub enum {name} {{\n")).nth(1).unwrap();
        let body = body.split("\n}").next().unwrap();
        let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
        let variants = variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
        let cells: Vec<_> = variants
            .enumerate()
            .map(|(number, line)| {
                let end = line.find(|c: char| !c.is_alphanumeric()).unwrap();
                format!("{number} `{}`", &line[..end])
            })
            .collect();
        assert!(cells.len() > 3, "{name}: only {} variants found", cells.len());
        let row = format!("| {} |", cells.join(", "));
        assert!(page.contains(&row), "docs/PROTOCOL.md has not this row of {name}: {row}");
    }
}
