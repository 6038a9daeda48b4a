//! The interface between an algorithm and the instructions that multiply for it.

/// Multiplication of numbers modulo an odd number, in parallel lanes.
pub trait Lanes: Sync {
    /// One number in each lane.
    type Wide: Copy;

    /// Numbers multiplied at a time.
    const WIDTH: usize;

    /// 64-bit limbs of a number in a table.
    const STRIDE: usize;

    /// The factor that brings a number into Montgomery's form, in 64-bit limbs.
    fn square(&self) -> Vec<u64>;

    /// Writes the number with these 64-bit limbs, at most as many as the modulus has, without
    /// conversion.
    fn write(&self, limbs: &[u64], place: &mut [u64]);

    /// The limbs of the number stored there, without conversion, below the modulus.
    fn read(&self, place: &[u64]) -> Vec<u64>;

    /// The numbers at these places of a table, one for each lane.
    fn gather(&self, table: &[u64], places: &[u32]) -> Self::Wide;

    /// Writes the first lanes' numbers, one for each of the places.
    fn scatter(&self, wide: &Self::Wide, table: &mut [u64], places: &[u32]);

    /// The products, lane by lane.
    fn mul(&self, a: &Self::Wide, b: &Self::Wide) -> Self::Wide;
}
