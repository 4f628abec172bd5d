"""scripts/gpu_pieces.py: files that travel in pieces are the same files, or they are not there."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "gpu_pieces.py"
PIECE = 64 << 10
INCOMPLETE = 3


class GpuPieces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.cut, self.there = self.folder / "cut", self.folder / "there"

    def run_script(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPT), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def make(self, name, size):
        path = self.folder / name
        path.write_bytes(os.urandom(size))
        return path

    def cut_files(self, *paths):
        done = self.run_script("cut", *paths, "--out", self.cut, "--piece-mib", PIECE / (1 << 20))
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(path for path in self.cut.iterdir() if path.suffix != ".json")

    def join(self):
        return self.run_script("join", self.cut, "--to", self.there)

    def test_what_is_joined_is_the_file(self):
        for size in (1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5):
            path = self.make(f"model{size}", size)
            pieces = [p for p in self.cut_files(path) if p.stem == path.name]
            self.assertEqual(len(pieces), (size - 1) // PIECE + 1)
            self.assertTrue(all(piece.stat().st_size <= PIECE for piece in pieces))
            done = self.join()
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual((self.there / path.name).read_bytes(), path.read_bytes())
        self.assertIn("whole", self.join().stdout)

    def test_pieces_come_in_any_order_over_several_calls(self):
        one, two = self.make("one", 3 * PIECE), self.make("two", PIECE)
        pieces = self.cut_files(one, two)
        later = [(piece, piece.read_bytes()) for piece in pieces if piece.stem == "one"]
        for piece, _ in later:
            piece.unlink()
        for piece, data in reversed(later):
            done = self.join()
            self.assertEqual(done.returncode, INCOMPLETE, done.stderr)
            self.assertIn(piece.name, done.stdout)
            self.assertFalse((self.there / "one").exists())
            self.assertTrue((self.there / "two").exists(), "it has all of its pieces")
            piece.write_bytes(data)
        self.assertEqual(self.join().returncode, 0)
        self.assertEqual((self.there / "one").read_bytes(), one.read_bytes())

    def test_a_damaged_or_short_piece_is_named_and_nothing_is_joined(self):
        path = self.make("model", 2 * PIECE)
        piece = self.cut_files(path)[1]
        whole = piece.read_bytes()
        for data in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
            piece.write_bytes(data)
            done = self.join()
            self.assertEqual(done.returncode, INCOMPLETE)
            self.assertIn("missing or damaged, of 2: model.001", done.stdout)
            self.assertFalse((self.there / "model").exists())

    def test_a_file_that_is_not_the_one_of_the_list_is_joined_anew(self):
        path = self.make("model", 2 * PIECE)
        self.cut_files(path)
        self.there.mkdir()
        (self.there / "model").write_bytes(os.urandom(2 * PIECE))
        self.assertEqual(self.join().returncode, 0)
        self.assertEqual((self.there / "model").read_bytes(), path.read_bytes())
        # A list whose file has another digest than its pieces make.
        listed = json.loads((self.cut / "model.json").read_text())
        (self.cut / "model.json").write_text(json.dumps(listed | {"sha256": "0" * 64}))
        (self.there / "model").unlink()
        done = self.join()
        self.assertEqual(done.returncode, 1)
        self.assertIn("its pieces are whole, the file is not", done.stderr)
        self.assertFalse((self.there / "model").exists())

    def test_wrong_arguments_are_named(self):
        path = self.make("model", 1)
        for size in ("0", "41"):
            done = self.run_script("cut", path, "--out", self.cut, "--piece-mib", size)
            self.assertEqual(done.returncode, 2)
        empty = self.make("empty", 0)
        for arguments in (
            ("cut", empty, "--out", self.cut),
            ("cut", self.folder / "none", "--out", self.cut),
            ("join", self.folder, "--to", self.there),
        ):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("gpu_pieces.py:", done.stderr)


if __name__ == "__main__":
    unittest.main()
