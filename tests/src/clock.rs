//! The one place where a test sleeps: between two looks at a condition, never instead of one; and
//! where a machine that is slow on purpose is slow.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Looks until `condition` gives a value.
///
/// # Panics
/// When `deadline` passes; the message says what was waited for and what `describe` sees then.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Option<T>,
    describe: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} for {what}; {}", describe());
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Takes as long as a slow machine's computation would. The delay is what is tested: nothing may rely
/// on it having been long enough.
pub async fn work_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}
