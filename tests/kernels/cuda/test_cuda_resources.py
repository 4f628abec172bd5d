"""The comparison itself: what it reads out of ptxas, and that every kind of difference is one."""

import unittest

import cuda_instructions
import cuda_resources
from cuda_resources import Resources

ENTRY = "_ZN5baton7kernels4cuda3gpu12_GLOBAL__N__113AddBothKernelENS1_1PE"
OUTPUT = f"""\
ptxas info    : Compiling entry function '{ENTRY}' for 'sm_90a'
ptxas info    : Function properties for {ENTRY}
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem
"""
SASS = f"""\
\t\tFunction : {ENTRY}
        /*0000*/                   LDC R1, c[0x0][0x28] ;     /* 0x00000a00ff017b82 */
                                                              /* 0x000ff00000000800 */
        /*04f0*/              @!PT LDS RZ, [RZ] ;             /* 0x00000000fffff984 */
        /*1a20*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;  /* 0x0 */
        /*1a30*/              @P0  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;  /* 0x0 */
        /*1a40*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;  /* 0x0 */
"""


class CudaInstructions(unittest.TestCase):
    def test_reads_what_cuobjdump_says(self):
        found = cuda_instructions.parse(SASS)
        products = {"HMMA.16816.F32.BF16": 2, "HGMMA.64x128x16.F32.BF16": 1}
        self.assertEqual(found, {"AddBothKernel": {"LDC": 1, "LDS": 1, **products}})

    def test_what_is_unlisted_missing_or_in_local_memory_is_a_difference(self):
        full = {
            kernel: [
                pattern.replace("\\.", ".").replace(".*", "")
                for pattern in cuda_instructions.needed(kernel)
            ]
            for kernel in cuda_instructions.EXPECTED
        }
        found = {kernel: dict.fromkeys(names, 1) for kernel, names in full.items()}
        self.assertEqual(cuda_instructions.differences(found), [])
        found["NewKernel"] = {}
        del found["GemmRows8Kernel"]["HMMA.16816.F32.BF16"]
        del found["GemmTile64Kernel"]["ACQBULK"]
        found["EmbedKernel"]["LDL.64"] = 3
        for kernel in ("CombineKernel", "UnpackQ40Kernel"):
            found[kernel]["LDG.E.128.CONSTANT"] = 1
        self.assertEqual(
            cuda_instructions.differences(found),
            [
                "NewKernel: no instructions are listed",
                r"GemmRows8Kernel: no instruction HMMA\.16816\.F32\.BF16",
                "GemmTile64Kernel: no instruction ACQBULK",
                "CombineKernel: 1 times LDG.E.128.CONSTANT",
                "EmbedKernel: 3 times LDL.64",
            ],
        )


class CudaResources(unittest.TestCase):
    def test_reads_what_ptxas_says(self):
        self.assertEqual(cuda_resources.parse(OUTPUT), {"AddBothKernel": Resources(40, 8, 16, 128)})

    def test_a_remark_that_products_are_serialized_is_found(self):
        remark = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
        self.assertTrue(cuda_resources.SERIALIZED.search(remark))
        self.assertFalse(cuda_resources.SERIALIZED.search(OUTPUT))

    def test_equal_is_no_difference(self):
        found = {"A": Resources(40, 0, 0, 128)}
        self.assertEqual(cuda_resources.differences(found, {"A": [40, 0, 0, 128, 0, 64]}), [])

    def test_one_register_more_is_a_difference(self):
        found = {"A": Resources(41, 0, 0, 128)}
        self.assertEqual(len(cuda_resources.differences(found, {"A": [40, 0, 0, 128, 0, 64]})), 1)

    def test_new_and_lost_kernels_are_differences(self):
        self.assertEqual(len(cuda_resources.differences({"A": Resources()}, {"B": [0] * 6})), 2)

    def test_a_spill_is_never_accepted(self):
        found = {"A": Resources(255, 8, 8, 0)}
        self.assertEqual(len(cuda_resources.differences(found, {"A": [255, 8, 8, 0, 0, 64]})), 1)


if __name__ == "__main__":
    unittest.main()
