import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

torch.manual_seed(6)
X, y = make_classification(n_samples=1500, n_features=16, n_informative=8, random_state=10)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)
X_train = torch.tensor(X_train, dtype=torch.float32)
X_test = torch.tensor(X_test, dtype=torch.float32)
y_train = torch.tensor(y_train, dtype=torch.float32).view(-1, 1)
y_test = torch.tensor(y_test, dtype=torch.float32).view(-1, 1)

classifier = nn.Sequential()
classifier.add_module("dense1", nn.Linear(16, 60))
classifier.add_module("relu1", nn.ReLU())
classifier.add_module("dense2", nn.Linear(60, 50))
classifier.add_module("relu2", nn.ReLU())
classifier.add_module("dense3", nn.Linear(50, 1))
classifier.add_module("prob", nn.Softmax(dim=1))

criterion = nn.BCELoss()
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.001)

for epoch in range(20):
    classifier.train()
    perm = torch.randperm(X_train.size(0))
    epoch_loss = 0
    for i in range(0, X_train.size(0), 32):
        indices = perm[i:i + 32]
        batch_x, batch_y = X_train[indices], y_train[indices]
        optimizer.zero_grad()
        outputs = classifier(batch_x)
        loss = criterion(outputs, batch_y)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(indices)
    classifier.eval()
    with torch.no_grad():
        acc = ((classifier(X_test) > 0.5).float() == y_test).float().mean()
    print(f"Epoch [{epoch + 1}/20] Loss: {epoch_loss / len(X_train):.4f} Test Acc: {acc:.4f}")
