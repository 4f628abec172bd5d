"""The comparison itself: what it reads out of ptxas, and that every kind of difference is one."""

import unittest

import cuda_resources
from cuda_resources import Resources

ENTRY = "_ZN5baton4cuda3gpu12_GLOBAL__N__113AddBothKernelENS0_1PE"
OUTPUT = f"""\
ptxas info    : Compiling entry function '{ENTRY}' for 'sm_90a'
ptxas info    : Function properties for {ENTRY}
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem
"""


class CudaResources(unittest.TestCase):
    def test_reads_what_ptxas_says(self):
        self.assertEqual(cuda_resources.parse(OUTPUT), {"AddBothKernel": Resources(40, 8, 16, 128)})

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
