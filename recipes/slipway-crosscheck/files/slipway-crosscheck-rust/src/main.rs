// What a Rust program of another machine gets wrong: the loader, unwinding, threads, calls of
// C, numbers of 128 bits, and how numbers become text. Each part is compared with what it
// must give.
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int};
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

extern "C" {
    fn snprintf(out: *mut c_char, size: usize, format: *const c_char, ...) -> c_int;
}

thread_local!(static COUNT: Cell<u64> = Cell::new(0));

fn unwind() -> bool {
    panic::set_hook(Box::new(|_| {}));
    let index = std::env::args().count() + 9; // the compiler must not know it
    let broke = panic::catch_unwind(|| [1, 2, 3][index]).is_err();
    let _ = panic::take_hook();
    broke
}

fn threads() -> bool {
    let sum = Arc::new(AtomicU64::new(0));
    let all: Vec<_> = (0..8)
        .map(|_| {
            let sum = sum.clone();
            thread::spawn(move || {
                for _ in 0..10_000 {
                    COUNT.with(|c| c.set(c.get() + 1));
                    sum.fetch_add(1, Ordering::Relaxed);
                }
                COUNT.with(|c| c.get())
            })
        })
        .collect();
    all.into_iter().all(|t| t.join().ok() == Some(10_000)) && sum.load(Ordering::SeqCst) == 80_000 && COUNT.with(|c| c.get()) == 0
}

fn calls_of_c() -> bool {
    let mut out = [0 as c_char; 64];
    let text = unsafe {
        snprintf(out.as_mut_ptr(), out.len(), b"%d %.3f %s %lld\0".as_ptr() as *const c_char, -7 as c_int, 2.5f64, b"text\0".as_ptr(), 1i64 << 40);
        CStr::from_ptr(out.as_ptr()).to_str().unwrap_or("").to_string()
    };
    text == "-7 2.500 text 1099511627776"
}

fn wide_numbers() -> bool {
    let n: u128 = "340282366920938463463374607431768211297".parse().unwrap_or(0); // a prime
    let m = n / 1_000_000_007 * 1_000_000_007 + n % 1_000_000_007;
    m == n && n.leading_zeros() == 0 && (n >> 64) as u64 == u64::MAX && (n as u64) == u64::MAX - 158
}

fn texts() -> bool {
    let sum: f64 = "0.1".parse::<f64>().unwrap_or(0.0) + 0.2;
    let small: f32 = "1e-45".parse().unwrap_or(0.0);
    sum.to_string() == "0.30000000000000004" && small.to_bits() == 1 && format!("{:e}", f64::MAX) == "1.7976931348623157e308"
}

fn machine() -> bool {
    let bytes = 0x0102_0304u32.to_ne_bytes();
    let little = bytes[0] == 4;
    little == cfg!(target_endian = "little") && std::mem::size_of::<usize>() * 8 == cfg!(target_pointer_width = "64").then(|| 64).unwrap_or(32)
}

// sort sorts pseudo-random numbers, and returns how many millions a second.
fn sort() -> Option<f64> {
    let mut state = 88172645463325252u64;
    let mut numbers: Vec<u64> = (0..1_000_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
        .collect();
    let mut count = HashMap::new();
    for n in &numbers {
        *count.entry(n % 16).or_insert(0) += 1;
    }
    let sum = numbers.iter().fold(0u64, |a, n| a.wrapping_add(*n));
    let began = Instant::now();
    numbers.sort_unstable();
    let took = began.elapsed().as_secs_f64();
    let whole = numbers.windows(2).all(|w| w[0] <= w[1]) && numbers.iter().fold(0u64, |a, n| a.wrapping_add(*n)) == sum;
    (whole && count.values().sum::<i32>() == 1_000_000 && took > 0.0).then(|| 1.0 / took)
}

fn main() {
    let parts: [(&str, fn() -> bool); 6] = [
        ("unwinding", unwind),
        ("threads", threads),
        ("calls of C", calls_of_c),
        ("numbers of 128 bits", wide_numbers),
        ("numbers as text", texts),
        ("word size and byte order", machine),
    ];
    let mut well = true;
    for (name, part) in parts.iter() {
        let ok = part();
        well &= ok;
        println!("{} {}", if ok { "OK" } else { "FAIL" }, name);
    }
    match sort() {
        Some(rate) => println!("OK sort\nsort={:.2} M/s", rate),
        None => {
            well = false;
            println!("FAIL sort")
        }
    }
    println!("program: {} {}", std::env::consts::ARCH, std::env::consts::OS);
    println!("Result = {}", if well { "PASS" } else { "FAIL" });
    std::process::exit(if well { 0 } else { 1 });
}
