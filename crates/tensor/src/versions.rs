//! One source, three machine codes: the macro that compiles a portable loop for each vector set.

/// Defines functions that take the vector set first and run the same body compiled for it.
///
/// - Holds: the bits are equal over vector sets, because the compiler neither reorders nor fuses floating-point
///   operations; every fused multiply-add is written as `mul_add`.
macro_rules! versioned {
    ($( $(#[$meta:meta])* $vis:vis fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
        #[inline]
        $vis fn $name(isa: $crate::cpu::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            match isa {
                // SAFETY: an `Isa` above `Scalar` exists only where the processor has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    )* };
}
