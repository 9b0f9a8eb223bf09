/// Random numbers that a seed decides: the same seed gives the same story again.
///
/// SplitMix64: small, the same everywhere, and no seed is a bad one.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// The story of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `limit`, without it.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        let at = self.below(u64::try_from(of.len()).unwrap());
        of[usize::try_from(at).unwrap()].clone()
    }
}
